package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.junit.jupiter.api.Timeout;

/** Messages that the listener can't handle. */
class RetryTest {
    /** Levels 3, 4 and 5, where retries begin, take 1, 2 and 3 s on such a server. */
    private static final String SHORT_LADDER = "messageDelayLevel=1s 1s 1s 2s 3s 4s";

    private static Server shortLadder;

    private static synchronized Server shortLadder() throws Exception {
        if (shortLadder == null) {
            Server s = new Server(SHORT_LADDER);
            Runtime.getRuntime().addShutdownHook(new Thread(() -> {
                try {
                    s.close();
                } catch (Exception e) {
                    System.err.println("server with the short ladder: " + e);
                }
            }));
            shortLadder = s;
        }
        return shortLadder;
    }

    /** Keeps what it gets and asks for it again, always, with the delay level given. */
    private static final class Refusing extends Inbox {
        private final int delayLevel;

        Refusing(int delayLevel) {
            this.delayLevel = delayLevel;
        }

        @Override
        public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> ms, ConsumeConcurrentlyContext ctx) {
            super.consumeMessage(ms, ctx);
            ctx.setDelayLevelWhenNextConsume(delayLevel);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        }

        @Override
        public ConsumeOrderlyStatus consumeMessage(List<MessageExt> ms, ConsumeOrderlyContext ctx) {
            super.consumeMessage(ms, ctx);
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        }
    }

    private static SendResult sendPoison(DefaultMQProducer p, String topic) throws Exception {
        Message m = Scope.message(topic, "TagP", "poison");
        m.setKeys("key of " + topic);
        m.putUserProperty("mine", "订单");
        return p.send(m);
    }

    /**
     * The seconds from each delivery until the broker made the message visible again, each at least the ladder's and not
     * much more.
     */
    private static List<String> gaps(Inbox in, long... millis) {
        List<String> out = new ArrayList<>();
        List<Inbox.Got> all = in.all();
        for (int i = 0; i < millis.length; i++) {
            long gap = all.get(i + 1).message().getStoreTimestamp() - all.get(i).millis();
            assertTrue(gap >= millis[i] - 50 && gap <= millis[i] + 2_000, "delivery " + (i + 2) + " came after " + gap + " ms, the ladder has " + millis[i]);
            out.add(String.format("%.1f", gap / 1e3));
        }
        return out;
    }

    /** The one message of the group's dead-letter topic. */
    private static MessageExt dead(Scope t, Server s, String group) throws Exception {
        Inbox dead = new Inbox();
        t.push(s.namesrv(), t.group(), "%DLQ%" + group, "*", dead, c -> { });
        dead.expect(60, List.of("poison"));
        MessageExt m = dead.messages().get(0);
        assertEquals("TagP", m.getTags());
        assertEquals("订单", m.getUserProperty("mine"));
        return m;
    }

    @Case("retry-ladder")
    void ladder(Scope t) throws Exception {
        Server s = shortLadder();
        DefaultMQProducer p = t.producer(s.namesrv());
        String topic = t.topic(p, 4);
        SendResult sent = sendPoison(p, topic);
        Inbox in = new Inbox() {
            @Override
            public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> ms, ConsumeConcurrentlyContext ctx) {
                super.consumeMessage(ms, ctx);
                return ms.get(0).getReconsumeTimes() < 3 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        };
        t.push(s.namesrv(), t.group(), topic, "TagP", in, c -> { });
        Await.until(60, () -> "four deliveries; " + in.texts(), () -> in.size() >= 4);
        Await.pause(3_000);
        assertEquals(4, in.size(), "and no more after it succeeded");
        t.note("retries after %s s on a ladder of 1, 2, 3 s", String.join(", ", gaps(in, 1_000, 2_000, 3_000)));
        for (int i = 0; i < 4; i++) {
            Inbox.Got g = in.all().get(i);
            assertEquals("poison", g.text());
            assertEquals(topic, g.topic(), "the listener sees the real topic");
            assertEquals(i, g.times());
            assertEquals("TagP", g.message().getTags());
            assertEquals("key of " + topic, g.message().getKeys());
            assertEquals("订单", g.message().getUserProperty("mine"));
            assertEquals(sent.getMsgId(), g.message().getMsgId());
            if (i > 0) {
                assertEquals(sent.getOffsetMsgId(), g.message().getProperty(MessageConst.PROPERTY_ORIGIN_MESSAGE_ID));
            }
        }
    }

    @Case("dlq")
    void deadLetters(Scope t) throws Exception {
        Server s = shortLadder();
        DefaultMQProducer p = t.producer(s.namesrv());
        String topic = t.topic(p, 4);
        SendResult sent = sendPoison(p, topic);
        String group = t.group();
        Inbox in = new Refusing(0);
        t.push(s.namesrv(), group, topic, "*", in, c -> c.setMaxReconsumeTimes(2));
        Await.until(60, "three deliveries", () -> in.size() >= 3);
        MessageExt m = dead(t, s, group);
        assertEquals(3, in.size(), "one delivery and exactly two retries");
        gaps(in, 1_000, 2_000);
        assertEquals(2, m.getReconsumeTimes() - 1, "times it was consumed before the last");
        assertEquals("key of " + topic, m.getKeys());
        assertEquals(topic, m.getProperty(MessageConst.PROPERTY_RETRY_TOPIC));
        assertEquals(sent.getOffsetMsgId(), m.getProperty(MessageConst.PROPERTY_ORIGIN_MESSAGE_ID));
        Await.pause(2_000);
        assertEquals(3, in.size(), "nothing after it died");
    }

    @Case("delay-level-of-retry")
    void chosenLevel(Scope t) throws Exception {
        Server s = shortLadder();
        DefaultMQProducer p = t.producer(s.namesrv());
        String topic = t.topic(p, 4);
        sendPoison(p, topic);
        Inbox in = new Refusing(6);
        String group = t.group();
        t.push(s.namesrv(), group, topic, "*", in, c -> c.setMaxReconsumeTimes(1));
        Await.until(60, "two deliveries", () -> in.size() >= 2);
        gaps(in, 4_000);

        String other = t.topic(p, 4);
        sendPoison(p, other);
        String straight = t.group();
        Inbox once = new Refusing(-1);
        t.push(s.namesrv(), straight, other, "*", once, c -> { });
        Await.until(60, "a delivery", () -> once.size() >= 1);
        dead(t, s, straight);
        assertEquals(1, once.size(), "level -1 means no retry at all");
        dead(t, s, group);
        assertEquals(2, in.size());
    }

    @Case("orderly-dlq")
    void orderedDeadLetters(Scope t) throws Exception {
        Server s = shortLadder();
        DefaultMQProducer p = t.producer(s.namesrv());
        String topic = t.topic(p, 1);
        sendPoison(p, topic);
        p.send(Scope.message(topic, "TagP", "behind it"));
        String group = t.group();
        Inbox in = new Inbox() {
            @Override
            public ConsumeOrderlyStatus consumeMessage(List<MessageExt> ms, ConsumeOrderlyContext ctx) {
                super.consumeMessage(ms, ctx);
                return text(ms.get(0)).equals("poison") ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            }
        };
        t.orderly(s.namesrv(), group, topic, in, c -> {
            c.setMaxReconsumeTimes(2);
            c.setSuspendCurrentQueueTimeMillis(200);
        });
        Await.until(60, () -> "the message behind; " + in.texts(), () -> in.has(g -> g.text().equals("behind it")));
        assertEquals(List.of("poison", "poison", "poison", "behind it"), in.texts());
        MessageExt m = dead(t, s, group);
        assertEquals(topic, m.getProperty(MessageConst.PROPERTY_RETRY_TOPIC));
        Await.pause(1_000);
        assertEquals(Map.of("poison", 3L, "behind it", 1L), Inbox.count(in.texts()));
    }

    /** The real ladder begins at 10 s, for a group that never existed before as well. */
    @Case(value = "retry-first-10s", apogeeOnly = "the client may look the new group's retry topic up too early and not again for 30 s")
    @Timeout(200)
    void firstRetry(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        Inbox in = new Inbox() {
            @Override
            public ConsumeConcurrentlyStatus consumeMessage(List<MessageExt> ms, ConsumeConcurrentlyContext ctx) {
                super.consumeMessage(ms, ctx);
                return ms.get(0).getReconsumeTimes() == 0 ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
        };
        t.push(Scope.server().namesrv(), t.group(), topic, "*", in, c -> c.setPollNameServerInterval(30_000));
        sendPoison(p, topic);
        Await.until(60, "the first retry", () -> in.size() >= 2);
        long took = in.all().get(1).millis() - in.all().get(0).millis();
        gaps(in, 10_000);
        t.note("first retry consumed after %.1f s", took / 1e3);
        assertTrue(took >= 9_900 && took <= 20_000, "the first retry was consumed after " + took + " ms");
    }
}
