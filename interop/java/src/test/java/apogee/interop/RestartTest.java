package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.Timeout;

/** The server stops and starts again on its folder, under running clients. */
class RestartTest {
    @Case("server-restart")
    @Timeout(200)
    void restart(Scope t) throws Exception {
        Server s = t.ownServer();
        DefaultMQProducer p = t.producer(s.namesrv());
        String topic = t.topic(p, 4);
        String stopped = t.group();
        List<String> first = Scope.bodies("first", 20);
        Scope.sendAll(p, topic, first);
        Inbox resting = new Inbox();
        DefaultMQPushConsumer rests = t.push(s.namesrv(), stopped, topic, "*", resting, c -> { });
        resting.expect(60, first);
        rests.shutdown();
        Inbox running = new Inbox();
        t.push(s.namesrv(), t.group(), topic, "*", running, c -> { });
        running.expect(60, first);
        Message keyed = Scope.message(topic, "", "keyed");
        keyed.setKeys("kept");
        SendResult before = p.send(keyed);
        List<String> all = new ArrayList<>(first);
        all.add("keyed");
        running.expect(60, all);

        s.restart();

        List<String> second = Scope.bodies("second", 20);
        for (String b : second) {
            Await.until(60, "the producer is back", () -> {
                try {
                    p.send(Scope.message(topic, "", b));
                    return true;
                } catch (Exception e) {
                    return false;
                }
            });
        }
        all.addAll(second);
        running.expect(60, all); // the running consumer lost nothing and got nothing twice
        assertEquals("keyed", Inbox.text(p.viewMessage(topic, before.getOffsetMsgId())));
        assertEquals(1, p.queryMessage(topic, "kept", 32, 0, System.currentTimeMillis()).getMessageList().size());

        List<String> sinceItRested = new ArrayList<>(second);
        sinceItRested.add("keyed");
        Inbox back = new Inbox();
        t.push(s.namesrv(), stopped, topic, "*", back, c -> { });
        back.expect(60, sinceItRested);
        Inbox fresh = new Inbox();
        t.push(s.namesrv(), t.group(), topic, "*", fresh, c -> { });
        fresh.expect(60, all);
    }
}
