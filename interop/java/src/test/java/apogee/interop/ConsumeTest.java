package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Timeout;

/** Push consumers. */
class ConsumeTest {
    /** The sum of the group's offsets on the broker. */
    private static long committed(DefaultMQPushConsumer c, String topic) throws Exception {
        long sum = 0;
        for (MessageQueue q : c.fetchSubscribeMessageQueues(topic)) {
            sum += Math.max(0, c.getDefaultMQPushConsumerImpl().getOffsetStore().readOffset(q, ReadOffsetType.READ_FROM_STORE));
        }
        return sum;
    }

    @Case("push-concurrent")
    void concurrent(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        List<String> bodies = Scope.bodies("m", 300);
        Scope.sendAll(p, topic, bodies);
        CountDownLatch together = new CountDownLatch(4);
        AtomicInteger largest = new AtomicInteger();
        Inbox in = new Inbox();
        DefaultMQPushConsumer c = t.push(Scope.server().namesrv(), t.group(), topic, "*", (ms, ctx) -> {
            together.countDown();
            try {
                together.await(10, TimeUnit.SECONDS); // four listeners at a time, or this never ends before its limit
            } catch (InterruptedException e) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            largest.accumulateAndGet(ms.size(), Math::max);
            in.add(ms);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }, x -> x.setConsumeMessageBatchMaxSize(10));
        in.expect(60, bodies);
        assertEquals(0, together.getCount(), "listeners running at the same time");
        assertEquals(10, largest.get(), "most messages in a call");
        Await.until(60, "the offsets are committed by the timer", () -> committed(c, topic) == bodies.size());
    }

    @Case("push-orderly")
    void orderly(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        int keys = 7;
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < 140; i++) {
            String b = "key" + i % keys + " " + i / keys;
            bodies.add(b);
            p.send(Scope.message(topic, "", b), new SelectMessageQueueByHash(), "key" + i % keys);
        }
        Set<Integer> busy = ConcurrentHashMap.newKeySet();
        List<String> wrong = Collections.synchronizedList(new ArrayList<>());
        AtomicBoolean suspended = new AtomicBoolean();
        Inbox in = new Inbox() {
            @Override
            public ConsumeOrderlyStatus consumeMessage(List<MessageExt> ms, ConsumeOrderlyContext ctx) {
                int q = ctx.getMessageQueue().getQueueId();
                if (!busy.add(q)) {
                    wrong.add("queue " + q + " consumed by two threads");
                }
                try {
                    if (text(ms.get(0)).equals("key3 5") && ms.get(0).getReconsumeTimes() == 0) {
                        suspended.set(true);
                        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
                    }
                    return super.consumeMessage(ms, ctx);
                } finally {
                    busy.remove(q);
                }
            }
        };
        t.orderly(Scope.server().namesrv(), t.group(), topic, in, c -> { });
        in.expect(60, bodies);
        assertEquals(List.of(), wrong);
        assertTrue(suspended.get(), "one message was put off");
        Map<String, Integer> next = new HashMap<>();
        for (Inbox.Got g : in.all()) {
            String key = g.text().split(" ")[0];
            int n = Integer.parseInt(g.text().split(" ")[1]);
            assertEquals(next.getOrDefault(key, 0), n, "order of " + key);
            assertEquals(g.text().equals("key3 5") ? 1 : 0, g.times(), "times before of " + g.text());
            next.put(key, n + 1);
        }
    }

    private static final Pattern LOCAL_OFFSET = Pattern.compile("}\\s*:\\s*(\\d+)");

    @Case("broadcast")
    void broadcast(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        String group = t.group();
        String instance = t.unique("B");
        List<String> before = Scope.bodies("before", 20);
        Scope.sendAll(p, topic, before);
        Scope.Setup<DefaultMQPushConsumer> broadcasting = Client::setBroadcasting;
        Inbox one = new Inbox();
        Inbox two = new Inbox();
        DefaultMQPushConsumer first = t.push(Scope.server().namesrv(), group, topic, "*", one, c -> {
            broadcasting.on(c);
            c.setInstanceName(instance);
        });
        t.push(Scope.server().namesrv(), group, topic, "*", two, broadcasting);
        one.expect(60, before);
        two.expect(60, before);
        String id = first.buildMQClientId();
        first.shutdown();
        Path file = Path.of(System.getProperty("rocketmq.client.localOffsetStoreDir"), id, group, "offsets.json");
        long sum = 0;
        for (Matcher m = LOCAL_OFFSET.matcher(Files.readString(file)); m.find(); ) {
            sum += Long.parseLong(m.group(1));
        }
        assertEquals(before.size(), sum, "the offsets in the client's own file");

        List<String> after = Scope.bodies("after", 20);
        Scope.sendAll(p, topic, after);
        Inbox again = new Inbox();
        t.push(Scope.server().namesrv(), group, topic, "*", again, c -> {
            broadcasting.on(c);
            c.setInstanceName(instance);
        });
        again.expect(60, after);
        List<String> all = new ArrayList<>(before);
        all.addAll(after);
        two.expect(60, all);
    }

    @Case("tags")
    void tags(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        List<String> sent = List.of("A", "B", "C", "", "Aa", "BB", "A"); // "Aa" and "BB" have the same hash code
        for (int i = 0; i < sent.size(); i++) {
            p.send(Scope.message(topic, sent.get(i), i + " " + sent.get(i)));
        }
        Map<String, List<String>> want = Map.of(
            "A || B", List.of("0 A", "1 B", "6 A"),
            "A||B||nobody", List.of("0 A", "1 B", "6 A"),
            "*", List.of("0 A", "1 B", "2 C", "3 ", "4 Aa", "5 BB", "6 A"),
            "C", List.of("2 C"),
            "Aa", List.of("4 Aa"));
        Map<String, Inbox> got = new HashMap<>();
        for (String expression : want.keySet()) {
            got.put(expression, new Inbox());
            t.push(Scope.server().namesrv(), t.group(), topic, expression, got.get(expression), c -> { });
        }
        Inbox nothing = new Inbox();
        DefaultMQPushConsumer none = t.push(Scope.server().namesrv(), t.group(), topic, "nobody", nothing, c -> { });
        for (String expression : want.keySet()) {
            got.get(expression).expect(60, want.get(expression));
        }
        Await.until(60, "filtered messages count as consumed", () -> committed(none, topic) == sent.size());
        assertEquals(0, nothing.size());
        p.send(Scope.message(topic, "B", "late B"));
        Await.until(60, "a parked pull wakes for its tag", () -> got.get("A || B").has(g -> g.text().equals("late B")));
        Await.pause(300);
        assertEquals(1, got.get("C").size());
    }

    @Case("suspend-resume")
    void suspend(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        Inbox in = new Inbox();
        DefaultMQPushConsumer c = t.push(t.group(), topic, in);
        Scope.sendAll(p, topic, Scope.bodies("one", 4));
        in.expect(60, Scope.bodies("one", 4));
        c.suspend();
        Scope.sendAll(p, topic, Scope.bodies("two", 4)); // one for each queue: it ends the pull that was under way
        Await.pause(2_000);
        int before = in.size();
        Scope.sendAll(p, topic, Scope.bodies("three", 4));
        Await.pause(2_500);
        assertEquals(before, in.size(), "consumed while suspended");
        c.resume();
        List<String> want = Scope.bodies("one", 4);
        want.addAll(Scope.bodies("two", 4));
        want.addAll(Scope.bodies("three", 4));
        in.expect(60, want);
    }

    @Case("unsubscribe")
    @Timeout(200)
    void unsubscribe(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String left = t.topic(p, 4);
        String kept = t.topic(p, 4);
        Inbox in = new Inbox();
        DefaultMQPushConsumer c = t.push(Scope.server().namesrv(), t.group(), left, "*", in, x -> x.subscribe(kept, "*"));
        Scope.sendAll(p, left, Scope.bodies("left", 4));
        Scope.sendAll(p, kept, Scope.bodies("kept", 4));
        List<String> want = Scope.bodies("left", 4);
        want.addAll(Scope.bodies("kept", 4));
        in.expect(60, want);
        Await.until(60, "the offsets are committed: a queue given up so loses the others", () -> committed(c, left) == 4);
        c.unsubscribe(left);
        Await.until(60, "its queues are given up at the next rebalance", () -> Scope.assigned(c, left).isEmpty());
        Scope.sendAll(p, left, Scope.bodies("unseen", 4));
        Scope.sendAll(p, kept, Scope.bodies("more", 4));
        want.addAll(Scope.bodies("more", 4));
        in.expect(60, want);
        Await.pause(1_000);
        assertEquals(want.size(), in.size(), "nothing of the topic that was left");
        c.subscribe(left, "*");
        want.addAll(Scope.bodies("unseen", 4));
        in.expect(60, want); // it goes on where it stopped
    }

    @Case("consumer-restart")
    void consumerRestart(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        String group = t.group();
        Scope.sendAll(p, topic, Scope.bodies("before", 30));
        Inbox first = new Inbox();
        DefaultMQPushConsumer c = t.push(group, topic, first);
        first.expect(60, Scope.bodies("before", 30));
        c.shutdown();
        Scope.sendAll(p, topic, Scope.bodies("after", 30));
        Inbox second = new Inbox();
        t.push(group, topic, second);
        second.expect(60, Scope.bodies("after", 30));
        assertEquals(30, first.size());
    }

    @Case("producer-first")
    void producerFirst(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic();
        List<String> bodies = Scope.bodies("m", 12);
        Scope.sendAll(p, topic, bodies); // the topic is made by the first of them
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        in.expect(60, bodies);
    }

    /** The topic appears under a waiting consumer; with LAST the Java server would skip what came before its first pull. */
    @Case(value = "consumer-first", apogeeOnly = "the first messages of a new topic are skipped by a consumer that starts at the end")
    void consumerFirst(Scope t) throws Exception {
        consumerFirst(t, 1_000);
    }

    /** The same with the client's own interval of 30 s between looks at the route. */
    @Case(value = "consumer-first-slow", apogeeOnly = "the first messages of a new topic are skipped by a consumer that starts at the end")
    @Timeout(200)
    void consumerFirstSlow(Scope t) throws Exception {
        consumerFirst(t, 30_000);
    }

    private static void consumerFirst(Scope t, int pollMillis) throws Exception {
        String topic = t.topic();
        Inbox in = new Inbox();
        t.push(Scope.server().namesrv(), t.group(), topic, "*", in, c -> {
            c.setPollNameServerInterval(pollMillis);
            c.setConsumeFromWhere(org.apache.rocketmq.common.consumer.ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        });
        Await.pause(1_500); // it has seen that there is no such topic
        DefaultMQProducer p = t.producer();
        long began = System.currentTimeMillis();
        List<String> bodies = Scope.bodies("m", 12);
        Scope.sendAll(p, topic, bodies);
        in.expect(pollMillis / 1_000 + 40, bodies);
        t.note("first message consumed after %.1f s", (in.all().get(0).millis() - began) / 1e3);
    }

    @Case(value = "heartbeat-v2", since = "5.1")
    void heartbeatV2(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        String group = t.group();
        List<Inbox> in = new ArrayList<>();
        List<DefaultMQPushConsumer> cs = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            Inbox one = new Inbox();
            in.add(one);
            cs.add(t.push(Scope.server().namesrv(), group, topic, "A || B", one, c -> {
                Client.setHeartbeatV2(c);
                c.setHeartbeatBrokerInterval(1_000);
            }));
        }
        Await.until(60, "two queues each", () -> Scope.assigned(cs.get(0), topic).size() == 2 && Scope.assigned(cs.get(1), topic).size() == 2);
        Await.pause(3_000); // heartbeats without subscriptions
        List<String> want = new ArrayList<>();
        for (int i = 0; i < 16; i++) {
            p.send(Scope.message(topic, List.of("A", "B", "C", "A").get(i / 4), "m" + i));
            if (i / 4 != 2) {
                want.add("m" + i);
            }
        }
        Await.until(60, "all of A and B", () -> in.get(0).size() + in.get(1).size() >= want.size());
        Await.pause(300);
        List<String> got = new ArrayList<>(in.get(0).texts());
        got.addAll(in.get(1).texts());
        assertEquals(Inbox.count(want), Inbox.count(got));
        assertTrue(in.get(0).size() > 0 && in.get(1).size() > 0, "both members got some");
    }
}
