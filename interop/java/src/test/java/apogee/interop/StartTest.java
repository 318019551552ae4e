package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.time.LocalDateTime;
import java.time.format.DateTimeFormatter;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** Where a group without offsets begins. */
class StartTest {
    private static final String IN_MEMORY = "it begins at 0 while the first message is in the page cache, whatever the setting";

    private static DefaultMQPushConsumer start(Scope t, Server s, String topic, ConsumeFromWhere where, Inbox in) throws Exception {
        DefaultMQPushConsumer c = t.push(s.namesrv(), t.group(), topic, "*", in, x -> x.setConsumeFromWhere(where));
        Await.until(60, "its queues", () -> Scope.assigned(c, topic).size() == 4);
        return c;
    }

    @Case("start-first")
    void first(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        List<String> want = Scope.bodies("old", 20);
        Scope.sendAll(p, topic, want);
        Inbox in = new Inbox();
        start(t, Scope.server(), topic, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, in);
        want.addAll(Scope.bodies("new", 20));
        Scope.sendAll(p, topic, Scope.bodies("new", 20));
        in.expect(60, want);
    }

    /** While a topic's first message is still in memory, a new group begins there whatever it asked for. */
    @Case("start-last-young")
    void lastOfYoungTopic(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        List<String> want = Scope.bodies("old", 20);
        Scope.sendAll(p, topic, want);
        Inbox in = new Inbox();
        start(t, Scope.server(), topic, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, in);
        in.expect(60, want);
    }

    @Case(value = "start-last", apogeeOnly = IN_MEMORY)
    void last(Scope t) throws Exception {
        Server s = t.ownServer("accessMessageInMemoryMaxRatio=0");
        DefaultMQProducer p = t.producer(s.namesrv());
        String topic = t.topic(p, 4);
        Scope.sendAll(p, topic, Scope.bodies("old", 20));
        Inbox in = new Inbox();
        start(t, s, topic, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, in);
        Scope.sendAll(p, topic, Scope.bodies("new", 20));
        in.expect(60, Scope.bodies("new", 20));
    }

    @Case(value = "start-timestamp", apogeeOnly = IN_MEMORY)
    void timestamp(Scope t) throws Exception {
        Server s = t.ownServer("accessMessageInMemoryMaxRatio=0");
        DefaultMQProducer p = t.producer(s.namesrv());
        String topic = t.topic(p, 4);
        Scope.sendAll(p, topic, Scope.bodies("old", 20));
        Await.pause(1_100); // the setting knows whole seconds
        String second = LocalDateTime.now().format(DateTimeFormatter.ofPattern("yyyyMMddHHmmss"));
        Scope.sendAll(p, topic, Scope.bodies("new", 20));
        Inbox in = new Inbox();
        DefaultMQPushConsumer c = t.push(s.namesrv(), t.group(), topic, "*", in, x -> {
            x.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
            x.setConsumeTimestamp(second);
        });
        in.expect(60, Scope.bodies("new", 20));
        assertEquals(4, Scope.assigned(c, topic).size());
    }
}
