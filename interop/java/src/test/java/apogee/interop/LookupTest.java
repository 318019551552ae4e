package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Messages found again. */
class LookupTest {
    private static List<String> query(DefaultMQProducer p, String topic, String key, int max, long begin, long end) throws Exception {
        try {
            QueryResult r = p.queryMessage(topic, key, max, begin, end);
            return r.getMessageList().stream().map(Inbox::text).sorted().collect(Collectors.toList());
        } catch (MQClientException e) {
            return List.of(); // the client's way to say that there is none
        }
    }

    @Case("query-by-id-and-key")
    void byIdAndKey(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        String other = t.topic(p, 4);
        long before = System.currentTimeMillis() - 1_000; // the index knows whole seconds
        List<SendResult> sent = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            Message m = Scope.message(topic, "TagQ", "m" + i);
            m.setKeys(Arrays.asList("order-" + i % 3, "订单" + i));
            m.putUserProperty("number", String.valueOf(i));
            sent.add(p.send(m));
        }
        Message elsewhere = Scope.message(other, "", "elsewhere");
        elsewhere.setKeys("order-1");
        p.send(elsewhere);
        long after = System.currentTimeMillis() + 1_000;

        for (int i = 0; i < 10; i++) {
            for (String id : List.of(sent.get(i).getOffsetMsgId(), sent.get(i).getMsgId())) {
                MessageExt m = p.viewMessage(topic, id);
                assertEquals("m" + i, Inbox.text(m));
                assertEquals("TagQ", m.getTags());
                assertEquals(String.valueOf(i), m.getUserProperty("number"));
                assertEquals(sent.get(i).getQueueOffset(), m.getQueueOffset());
                assertEquals(sent.get(i).getMessageQueue().getQueueId(), m.getQueueId());
            }
        }
        Await.until(60, "the index has them", () -> query(p, topic, "order-1", 32, before, after).size() == 3);
        assertEquals(List.of("m0", "m3", "m6", "m9"), query(p, topic, "order-0", 32, before, after));
        assertEquals(List.of("m1", "m4", "m7"), query(p, topic, "order-1", 32, before, after), "not those of another topic");
        assertEquals(List.of("m5"), query(p, topic, "订单5", 32, before, after));
        assertEquals(2, query(p, topic, "order-0", 2, before, after).size(), "no more than asked for");
        assertEquals(List.of(), query(p, topic, "order-9", 32, before, after));
        assertEquals(List.of(), query(p, topic, "order-1", 32, 0, before - 60_000), "none from before");

        String id = sent.get(0).getOffsetMsgId();
        String beyond = id.substring(0, 16) + "00000FFFFFFFFFFF";
        assertThrows(Exception.class, () -> p.viewMessage(topic, beyond));
        assertTrue(p.viewMessage(topic, id).getStoreTimestamp() >= before);
    }
}
