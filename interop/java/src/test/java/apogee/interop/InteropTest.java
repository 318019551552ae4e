package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;

@ExtendWith(Results.class)
class InteropTest {
    private static Server shared;
    private static final AtomicInteger UNIQUE = new AtomicInteger();

    @BeforeAll
    static void startServer() throws Exception {
        shared = new Server();
    }

    @AfterAll
    static void stopServer() throws Exception {
        shared.close();
    }

    private static String name(String what) {
        return what + "-" + ProcessHandle.current().pid() + "-" + UNIQUE.incrementAndGet();
    }

    private static void eventually(int seconds, String what, BooleanSupplier cond) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (!cond.getAsBoolean()) {
            assertTrue(System.nanoTime() < deadline, "not within " + seconds + " s: " + what);
            TimeUnit.MILLISECONDS.sleep(10);
        }
    }

    private static DefaultMQProducer producer(Server s) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer(name("P"));
        p.setNamesrvAddr(s.names);
        p.setSendMsgTimeout(10_000);
        p.start();
        return p;
    }

    private static DefaultMQPushConsumer consumer(Server s, String group, String topic, String tags) throws Exception {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(group);
        c.setNamesrvAddr(s.names);
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.setPollNameServerInterval(1000);
        c.setInstanceName(name("I"));
        c.subscribe(topic, tags);
        return c;
    }

    private static DefaultMQPushConsumer collect(Server s, String group, String topic, String tags, List<MessageExt> into) throws Exception {
        DefaultMQPushConsumer c = consumer(s, group, topic, tags);
        c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> {
            into.addAll(ms);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        return c;
    }

    private static Message message(String topic, String tag, String body) {
        return new Message(topic, tag, body.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(MessageExt m) {
        return new String(m.getBody(), StandardCharsets.UTF_8);
    }

    @Test
    void sendSync() throws Exception {
        String topic = name("SendSync");
        DefaultMQProducer p = producer(shared);
        Message m = message(topic, "TagA", "body ☃ 订单");
        m.setKeys(Arrays.asList("k1", "k2"));
        m.putUserProperty("unicode", "é订单😀");
        SendResult r = p.send(m);
        assertEquals(SendStatus.SEND_OK, r.getSendStatus());
        assertEquals(0, r.getQueueOffset());
        List<MessageExt> got = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer c = collect(shared, name("G"), topic, "*", got);
        eventually(60, "consumed", () -> got.size() == 1);
        MessageExt x = got.get(0);
        assertEquals("body ☃ 订单", text(x));
        assertEquals("TagA", x.getTags());
        assertEquals("k1 k2", x.getKeys());
        assertEquals("é订单😀", x.getUserProperty("unicode"));
        assertEquals(r.getMsgId(), x.getMsgId());
        c.shutdown();
        p.shutdown();
    }

    @Test
    void sendAsyncOnewayBatch() throws Exception {
        String topic = name("SendMany");
        DefaultMQProducer p = producer(shared);
        p.send(message(topic, "", "first"));
        CountDownLatch done = new CountDownLatch(10);
        AtomicInteger failed = new AtomicInteger();
        for (int i = 0; i < 10; i++) {
            p.send(message(topic, "", "async" + i), new SendCallback() {
                @Override
                public void onSuccess(SendResult r) {
                    done.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    failed.incrementAndGet();
                    done.countDown();
                }
            });
        }
        assertTrue(done.await(20, TimeUnit.SECONDS));
        assertEquals(0, failed.get());
        for (int i = 0; i < 5; i++) {
            p.sendOneway(message(topic, "", "oneway" + i));
        }
        List<Message> batch = new ArrayList<>();
        for (int i = 0; i < 7; i++) {
            batch.add(message(topic, "", "batch" + i));
        }
        SendResult r = p.send(batch);
        assertEquals(7, r.getOffsetMsgId().split(",").length);
        List<MessageExt> got = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer c = collect(shared, name("G"), topic, "*", got);
        eventually(60, "23 messages", () -> got.size() >= 23);
        Set<String> bodies = new HashSet<>();
        got.forEach(m -> bodies.add(text(m)));
        assertEquals(23, bodies.size());
        c.shutdown();
        p.shutdown();
    }

    @Test
    void queueSelector() throws Exception {
        String topic = name("Selector");
        DefaultMQProducer p = producer(shared);
        p.send(message(topic, "", "x"));
        for (int i = 0; i < 8; i++) {
            int want = i % 4;
            SendResult r = p.send(message(topic, "", "x"), (mqs, m, arg) -> mqs.get((Integer) arg), want);
            assertEquals(want, r.getMessageQueue().getQueueId());
        }
        p.shutdown();
    }

    @Test
    void bodySizes() throws Exception {
        String topic = name("Sizes");
        DefaultMQProducer p = producer(shared);
        p.setCompressMsgBodyOverHowmuch(8 << 20);
        Map<Integer, byte[]> want = new HashMap<>();
        Random random = new Random(1);
        for (int n : new int[] {1, 100, 4096, 100_000, 1 << 20, 4 << 20}) {
            byte[] body = new byte[n];
            random.nextBytes(body);
            want.put(n, body);
            assertEquals(SendStatus.SEND_OK, p.send(new Message(topic, body)).getSendStatus());
        }
        List<MessageExt> got = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer c = collect(shared, name("G"), topic, "*", got);
        eventually(60, "all sizes", () -> got.size() == want.size());
        for (MessageExt m : got) {
            assertArrayEquals(want.get(m.getBody().length), m.getBody());
        }
        c.shutdown();
        p.shutdown();
    }

    @Test
    void compressed() throws Exception {
        String topic = name("Compressed");
        DefaultMQProducer p = producer(shared);
        String body = "compress me ".repeat(10_000);
        p.send(message(topic, "", body));
        List<MessageExt> got = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer c = collect(shared, name("G"), topic, "*", got);
        eventually(60, "consumed", () -> got.size() == 1);
        assertEquals(body, text(got.get(0)));
        assertTrue(got.get(0).getStoreSize() < 10_000, "stored compressed");
        c.shutdown();
        p.shutdown();
    }

    @Test
    void tags() throws Exception {
        String topic = name("Tags");
        DefaultMQProducer p = producer(shared);
        for (String tag : new String[] {"A", "B", "C", "", "A"}) {
            p.send(message(topic, tag, "tag" + tag));
        }
        for (Map.Entry<String, Integer> e : Map.of("A || B", 3, "*", 5, "C", 1).entrySet()) {
            List<MessageExt> got = new CopyOnWriteArrayList<>();
            DefaultMQPushConsumer c = collect(shared, name("G"), topic, e.getKey(), got);
            eventually(60, e.getValue() + " messages of " + e.getKey(), () -> got.size() == e.getValue());
            c.shutdown();
        }
        p.shutdown();
    }

    @Test
    void pushOrderly() throws Exception {
        String topic = name("Orderly");
        DefaultMQProducer p = producer(shared);
        for (int i = 0; i < 60; i++) {
            int key = i % 5;
            p.send(message(topic, "", key + "-" + i), (mqs, m, arg) -> mqs.get((Integer) arg % mqs.size()), key);
        }
        List<String> got = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer c = consumer(shared, name("G"), topic, "*");
        c.registerMessageListener((MessageListenerOrderly) (ms, ctx) -> {
            ms.forEach(m -> got.add(text(m)));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        c.start();
        eventually(60, "60 messages", () -> got.size() >= 60);
        Map<String, Integer> last = new HashMap<>();
        for (String b : got) {
            String[] f = b.split("-");
            int n = Integer.parseInt(f[1]);
            assertTrue(n > last.getOrDefault(f[0], -1), b);
            last.put(f[0], n);
        }
        c.shutdown();
        p.shutdown();
    }

    @Test
    void broadcast() throws Exception {
        String topic = name("Broadcast");
        DefaultMQProducer p = producer(shared);
        p.send(message(topic, "", "x"));
        String group = name("G");
        List<List<MessageExt>> all = new ArrayList<>();
        List<DefaultMQPushConsumer> cs = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            List<MessageExt> got = new CopyOnWriteArrayList<>();
            all.add(got);
            DefaultMQPushConsumer c = consumer(shared, group, topic, "*");
            c.setMessageModel(protocolBroadcasting());
            c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> {
                got.addAll(ms);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            c.start();
            cs.add(c);
        }
        for (int i = 0; i < 10; i++) {
            p.send(message(topic, "", "b" + i));
        }
        eventually(60, "both got all", () -> all.get(0).size() >= 11 && all.get(1).size() >= 11);
        cs.forEach(DefaultMQPushConsumer::shutdown);
        p.shutdown();
    }

    /** MessageModel moved between packages from 4.9 to 5.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static <T> T protocolBroadcasting() throws Exception {
        for (String c : new String[] {"org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel", "org.apache.rocketmq.common.protocol.heartbeat.MessageModel"}) {
            try {
                return (T) Enum.valueOf((Class) Class.forName(c), "BROADCASTING");
            } catch (ClassNotFoundException e) {
                continue;
            }
        }
        throw new IllegalStateException("no MessageModel");
    }

    @Test
    void litePull() throws Exception {
        String topic = name("Lite");
        DefaultMQProducer p = producer(shared);
        for (int i = 0; i < 20; i++) {
            p.send(message(topic, "", "l" + i));
        }
        DefaultLitePullConsumer sub = new DefaultLitePullConsumer(name("G"));
        sub.setNamesrvAddr(shared.names);
        sub.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        sub.subscribe(topic, "*");
        sub.start();
        Set<String> got = new HashSet<>();
        eventually(60, "20 by subscribe", () -> {
            sub.poll(200).forEach(m -> got.add(text(m)));
            return got.size() == 20;
        });
        sub.shutdown();
        DefaultLitePullConsumer assigned = new DefaultLitePullConsumer(name("G"));
        assigned.setNamesrvAddr(shared.names);
        assigned.setAutoCommit(false);
        assigned.start();
        assigned.assign(assigned.fetchMessageQueues(topic));
        for (MessageQueue q : assigned.fetchMessageQueues(topic)) {
            assigned.seek(q, 0);
        }
        Set<String> again = new HashSet<>();
        eventually(60, "20 by assign", () -> {
            assigned.poll(200).forEach(m -> again.add(text(m)));
            return again.size() == 20;
        });
        assigned.shutdown();
        p.shutdown();
    }

    @Test
    void oldPullConsumer() throws Exception {
        String topic = name("OldPull");
        DefaultMQProducer p = producer(shared);
        for (int i = 0; i < 12; i++) {
            p.send(message(topic, "", "o" + i));
        }
        DefaultMQPullConsumer c = new DefaultMQPullConsumer(name("G"));
        c.setNamesrvAddr(shared.names);
        c.start();
        int n = 0;
        for (MessageQueue q : c.fetchSubscribeMessageQueues(topic)) {
            long at = c.minOffset(q);
            assertEquals(0, at);
            PullResult r = c.pull(q, "*", at, 32);
            if (r.getPullStatus() == PullStatus.FOUND) {
                n += r.getMsgFoundList().size();
                assertEquals(c.maxOffset(q), r.getNextBeginOffset());
                c.updateConsumeOffset(q, r.getNextBeginOffset());
            }
            assertEquals(0, c.searchOffset(q, 0));
        }
        assertEquals(12, n);
        c.shutdown();
        p.shutdown();
    }

    @Test
    void consumerRestart() throws Exception {
        String topic = name("Restart");
        String group = name("G");
        DefaultMQProducer p = producer(shared);
        for (int i = 0; i < 10; i++) {
            p.send(message(topic, "", "before" + i));
        }
        List<MessageExt> first = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer c = collect(shared, group, topic, "*", first);
        eventually(60, "10 messages", () -> first.size() == 10);
        // A shutdown drops what the listener has not returned from: wait until the client counts all ten as done.
        DefaultMQPushConsumer done = c;
        eventually(60, "10 messages done", () -> done.getDefaultMQPushConsumerImpl().getOffsetStore().cloneOffsetTable(topic).values().stream()
            .mapToLong(v -> ((Number) v).longValue()).sum() >= 10);
        c.shutdown();
        for (int i = 0; i < 10; i++) {
            p.send(message(topic, "", "after" + i));
        }
        List<MessageExt> second = new CopyOnWriteArrayList<>();
        c = collect(shared, group, topic, "*", second);
        eventually(60, "10 more", () -> second.size() >= 10);
        second.forEach(m -> assertTrue(text(m).startsWith("after"), text(m)));
        c.shutdown();
        p.shutdown();
    }

    @Test
    void serverRestart() throws Exception {
        try (Server s = new Server()) {
            String topic = name("ServerRestart");
            DefaultMQProducer p = producer(s);
            List<MessageExt> got = new CopyOnWriteArrayList<>();
            p.send(message(topic, "", "before"));
            DefaultMQPushConsumer c = collect(s, name("G"), topic, "*", got);
            eventually(60, "the first", () -> got.size() == 1);
            s.stop();
            s.start("--namesrv-port", Server.port(s.names), "--broker-port", Server.port(s.broker));
            eventually(60, "a send after the restart", () -> {
                try {
                    return p.send(message(topic, "", "after")).getSendStatus() == SendStatus.SEND_OK;
                } catch (Exception e) {
                    return false;
                }
            });
            eventually(60, "consumption goes on", () -> got.stream().anyMatch(m -> text(m).equals("after")));
            c.shutdown();
            p.shutdown();
        }
    }

    @Test
    void consumerFirst() throws Exception {
        String topic = name("ConsumerFirst");
        List<MessageExt> got = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer c = consumer(shared, name("G"), topic, "*");
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> {
            got.addAll(ms);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        DefaultMQProducer p = producer(shared);
        for (int i = 0; i < 5; i++) {
            p.send(message(topic, "", "c" + i));
        }
        eventually(60, "all five, the first among them", () -> got.size() == 5);
        c.shutdown();
        p.shutdown();
    }

    @Test
    void startLast() throws Exception {
        try (Server s = new Server("--set", "accessMessageInMemoryMaxRatio=0")) {
            String topic = name("Last");
            DefaultMQProducer p = producer(s);
            for (int i = 0; i < 20; i++) {
                p.send(message(topic, "", "old"));
            }
            List<MessageExt> got = new CopyOnWriteArrayList<>();
            DefaultMQPushConsumer c = consumer(s, name("G"), topic, "*");
            c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
            c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> {
                got.addAll(ms);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            c.start();
            eventually(60, "a new message", () -> {
                try {
                    p.send(message(topic, "", "new"));
                } catch (Exception e) {
                    throw new IllegalStateException(e);
                }
                return !got.isEmpty();
            });
            got.forEach(m -> assertEquals("new", text(m)));
            c.shutdown();
            p.shutdown();
        }
    }

    @Test
    void dlq() throws Exception {
        try (Server s = new Server("--set", "messageDelayLevel=1s 1s 1s 1s 1s 1s 1s 1s")) {
            String topic = name("Poison");
            String group = name("G");
            DefaultMQProducer p = producer(s);
            p.send(message(topic, "", "poison"));
            AtomicInteger times = new AtomicInteger();
            DefaultMQPushConsumer c = consumer(s, group, topic, "*");
            c.setMaxReconsumeTimes(2);
            c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> {
                times.incrementAndGet();
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
            c.start();
            eventually(60, "tried three times", () -> times.get() == 3);
            List<MessageExt> dead = new CopyOnWriteArrayList<>();
            DefaultMQPushConsumer d = collect(s, name("G"), "%DLQ%" + group, "*", dead);
            eventually(60, "in the dead-letter queue", () -> dead.size() == 1);
            assertEquals("poison", text(dead.get(0)));
            assertEquals(3, times.get());
            c.shutdown();
            d.shutdown();
            p.shutdown();
        }
    }

    @Test
    void retryFirst() throws Exception {
        String topic = name("Retry");
        DefaultMQProducer p = producer(shared);
        p.send(message(topic, "", "again"));
        AtomicLong first = new AtomicLong();
        AtomicLong second = new AtomicLong();
        DefaultMQPushConsumer c = consumer(shared, name("G"), topic, "*");
        c.setPollNameServerInterval(30_000);
        c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> {
            if (first.compareAndSet(0, System.nanoTime())) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            second.compareAndSet(0, System.nanoTime());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.start();
        eventually(60, "came again", () -> second.get() != 0);
        double took = (second.get() - first.get()) / 1e9;
        Results.NOTES.put("retryFirst", String.format("first retry after %.1f s", took));
        assertTrue(took > 8 && took < 12, "first retry after " + took + " s");
        c.shutdown();
        p.shutdown();
    }

    @Test
    void queryByIdAndKey() throws Exception {
        String topic = name("Query");
        DefaultMQProducer p = producer(shared);
        Message m = message(topic, "", "find me");
        m.setKeys("key-" + topic);
        SendResult r = p.send(m);
        MessageExt byId = p.viewMessage(topic, r.getOffsetMsgId());
        assertEquals("find me", text(byId));
        MessageExt byUnique = p.viewMessage(topic, r.getMsgId());
        assertEquals("find me", text(byUnique));
        QueryResult q = p.queryMessage(topic, "key-" + topic, 32, System.currentTimeMillis() - 60_000, System.currentTimeMillis() + 60_000);
        assertEquals(1, q.getMessageList().size());
        assertEquals("find me", text(q.getMessageList().get(0)));
        p.shutdown();
    }

    @Test
    void suspendResumeUnsubscribe() throws Exception {
        String topic = name("Suspend");
        DefaultMQProducer p = producer(shared);
        p.send(message(topic, "", "one"));
        List<MessageExt> got = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer c = collect(shared, name("G"), topic, "*", got);
        eventually(60, "one", () -> got.size() == 1);
        c.suspend();
        c.resume();
        p.send(message(topic, "", "two"));
        eventually(60, "two after resume", () -> got.size() == 2);
        c.unsubscribe(topic);
        c.shutdown();
        p.shutdown();
    }

    @Test
    void delayLevel() throws Exception {
        String topic = name("Delay");
        DefaultMQProducer p = producer(shared);
        List<MessageExt> got = new CopyOnWriteArrayList<>();
        DefaultMQPushConsumer c = collect(shared, name("G"), topic, "*", got);
        Message m = message(topic, "", "later");
        m.setDelayTimeLevel(2);
        p.send(m);
        eventually(60, "delivered", () -> got.size() == 1);
        long took = got.get(0).getStoreTimestamp() - got.get(0).getBornTimestamp();
        assertTrue(took >= 4990 && took < 6000, "delivered after " + took + " ms");
        c.shutdown();
        p.shutdown();
    }

    @Test
    void oversize() throws Exception {
        DefaultMQProducer p = producer(shared);
        p.setMaxMessageSize(16 << 20);
        p.setCompressMsgBodyOverHowmuch(16 << 20);
        Exception e = assertThrows(Exception.class, () -> p.send(new Message(name("Big"), new byte[5 << 20])));
        assertTrue(e.getMessage().contains("CODE: 13"), e.getMessage());
        p.shutdown();
    }

    @Test
    void rebalanceFrom1To5() throws Exception {
        String topic = name("Rebalance");
        String group = name("G");
        DefaultMQProducer p = producer(shared);
        p.send(message(topic, "", "x"));
        List<DefaultMQPushConsumer> cs = new ArrayList<>();
        int[][] want = {{4}, {2, 2}, {2, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1, 0}};
        for (int n = 1; n <= 5; n++) {
            cs.add(collect(shared, group, topic, "*", new CopyOnWriteArrayList<>()));
            share(cs, topic, want[n - 1]);
        }
        for (int n = 4; n >= 1; n--) {
            cs.remove(n).shutdown();
            share(cs, topic, want[n - 1]);
        }
        cs.get(0).shutdown();
        p.shutdown();
    }

    /** Waits until the consumers' shares of the topic, largest first, are as wanted. */
    private static void share(List<DefaultMQPushConsumer> cs, String topic, int[] want) throws Exception {
        eventually(60, "shares " + Arrays.toString(want), () -> {
            int[] got = new int[cs.size()];
            for (int i = 0; i < got.length; i++) {
                got[i] = (int) cs.get(i).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
                    .filter(q -> q.getTopic().equals(topic)).count();
            }
            Integer[] sorted = Arrays.stream(got).boxed().toArray(Integer[]::new);
            Arrays.sort(sorted, Collections.reverseOrder());
            return Arrays.equals(Arrays.stream(sorted).mapToInt(i -> i).toArray(), want);
        });
    }

    @Test
    void strategies() throws Exception {
        for (var strategy : List.of(new AllocateMessageQueueAveragelyByCircle(), new AllocateMessageQueueConsistentHash())) {
            String topic = name("Strategy");
            String group = name("G");
            DefaultMQProducer p = producer(shared);
            List<MessageExt> got = new CopyOnWriteArrayList<>();
            p.send(message(topic, "", "s"));
            List<DefaultMQPushConsumer> cs = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                DefaultMQPushConsumer c = consumer(shared, group, topic, "*");
                c.setAllocateMessageQueueStrategy(strategy);
                c.registerMessageListener((MessageListenerConcurrently) (ms, ctx) -> {
                    got.addAll(ms);
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                });
                c.start();
                cs.add(c);
            }
            for (int i = 0; i < 16; i++) {
                p.send(message(topic, "", "s" + i));
            }
            eventually(60, "all consumed", () -> {
                Set<String> bodies = new HashSet<>();
                got.forEach(m -> bodies.add(text(m)));
                return bodies.size() == 17;
            });
            cs.forEach(DefaultMQPushConsumer::shutdown);
            p.shutdown();
        }
    }

    /** A child process and what it printed. */
    private static final class Child {
        final Process process;
        final List<String> got = new CopyOnWriteArrayList<>();

        Child(String names, String group, String topic) throws Exception {
            process = new ProcessBuilder(System.getProperty("java.home") + "/bin/java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-Drocketmq.client.logLevel=ERROR",
                "-cp", System.getProperty("surefire.test.class.path", System.getProperty("java.class.path")), OrderedChild.class.getName(), names, group, topic)
                .redirectError(ProcessBuilder.Redirect.DISCARD).start();
            Thread t = new Thread(() -> {
                try (BufferedReader r = new BufferedReader(new InputStreamReader(process.getInputStream()))) {
                    for (String l = r.readLine(); l != null; l = r.readLine()) {
                        if (l.startsWith("got ")) {
                            got.add(l.substring(4));
                        }
                    }
                } catch (java.io.IOException e) {
                    got.add("error " + e);
                }
            });
            t.setDaemon(true);
            t.start();
        }

        Set<String> queues(int from) {
            Set<String> out = new HashSet<>();
            List<String> now = new ArrayList<>(got);
            now.subList(Math.min(from, now.size()), now.size()).forEach(l -> out.add(l.split(" ")[0]));
            return out;
        }

        Set<String> share() throws Exception {
            int n = got.size();
            eventually(60, "more messages", () -> got.size() >= n + 8);
            return queues(n);
        }
    }

    /** Sends numbered messages to the topic's queues until it is stopped. */
    private static final class Feed {
        final AtomicBoolean stop = new AtomicBoolean();
        final AtomicInteger sent = new AtomicInteger();
        final List<String> errors = new CopyOnWriteArrayList<>();
        final Thread thread;

        Feed(DefaultMQProducer p, String topic, int queues) {
            thread = new Thread(() -> {
                try {
                    while (!stop.get()) {
                        for (int q = 0; q < queues; q++) {
                            p.send(message(topic, "", String.valueOf(sent.get())), (mqs, m, arg) -> mqs.get((Integer) arg), q);
                        }
                        sent.incrementAndGet();
                        TimeUnit.MILLISECONDS.sleep(20);
                    }
                } catch (Exception e) {
                    errors.add(e.toString());
                }
            });
            thread.start();
        }

        int stop() throws Exception {
            stop.set(true);
            thread.join(20_000);
            assertEquals(List.of(), errors);
            return sent.get();
        }
    }

    private static void checkOrder(int total, Child... cs) {
        for (int q = 0; q < 4; q++) {
            Set<Integer> all = new HashSet<>();
            for (Child c : cs) {
                int last = -2;
                for (String l : c.got) {
                    String[] f = l.split(" ");
                    if (f[0].equals(String.valueOf(q))) {
                        int n = Integer.parseInt(f[2]);
                        assertTrue(n > last, "queue " + q + ": " + n + " after " + last + " in one member");
                        last = n;
                        if (n >= 0) {
                            all.add(n);
                        }
                    }
                }
            }
            assertEquals(total, all.size(), "messages of queue " + q + " consumed");
        }
    }

    private interface End {
        void of(Child c) throws Exception;
    }

    private static double takeover(End end) throws Exception {
        try (Server s = new Server()) {
            String topic = name("Takeover");
            String group = name("G");
            DefaultMQProducer p = producer(s);
            createTopic(p, s, topic);
            Child a = new Child(s.names, group, topic);
            Child b = new Child(s.names, group, topic);
            Feed feed = new Feed(p, topic, 4);
            TreeMap<Integer, Set<String>> shares = new TreeMap<>();
            eventually(90, "each has two queues", () -> {
                try {
                    shares.put(0, a.share());
                    shares.put(1, b.share());
                } catch (Exception e) {
                    throw new IllegalStateException(e);
                }
                return shares.get(0).size() == 2 && shares.get(1).size() == 2;
            });
            int from = b.got.size();
            long began = System.nanoTime();
            end.of(a);
            eventually(90, "the other has the queues", () -> b.queues(from).containsAll(shares.get(0)));
            double took = (System.nanoTime() - began) / 1e9;
            int total = feed.stop();
            eventually(60, "everything consumed", () -> {
                Set<String> ends = new HashSet<>();
                b.got.stream().map(l -> l.split(" ")).filter(f -> f[2].equals(String.valueOf(total - 1))).forEach(f -> ends.add(f[0]));
                return ends.size() == 4;
            });
            checkOrder(total, a, b);
            b.process.destroyForcibly();
            a.process.destroyForcibly();
            p.shutdown();
            return took;
        }
    }

    /** The first send makes the topic, with 4 queues. */
    private static void createTopic(DefaultMQProducer p, Server s, String topic) throws Exception {
        p.send(message(topic, "", "-1"), (mqs, m, arg) -> mqs.get(0), null);
        assertTrue(p.fetchPublishMessageQueues(topic).size() == 4, "4 queues on " + s.broker);
    }

    @Test
    void takeoverKill() throws Exception {
        double took = takeover(c -> c.process.destroyForcibly());
        Results.NOTES.put("takeoverKill", String.format("%.2f s until the other had the queues", took));
        assertTrue(took <= 6, "took " + took + " s");
    }

    @Test
    void takeoverClean() throws Exception {
        double[] left = new double[1];
        double took = takeover(c -> {
            long began = System.nanoTime();
            c.process.getOutputStream().close();
            c.process.waitFor(30, TimeUnit.SECONDS);
            left[0] = (System.nanoTime() - began) / 1e9;
        });
        Results.NOTES.put("takeoverClean", String.format("%.2f s from the beginning of the shutdown, which itself took %.2f s", took, left[0]));
        assertTrue(took <= left[0] + 1, "took " + took + " s, the shutdown " + left[0] + " s");
    }

    /** Cuts all connections of live owners: nobody rebalances, nothing is reordered. */
    @Test
    void connectionReset() throws Exception {
        try (Server s = new Server("--set", "brokerIP1=127.0.0.3"); Proxy proxy = new Proxy("127.0.0.3", Integer.parseInt(Server.port(s.broker)))) {
            String topic = name("Reset");
            String group = name("G");
            DefaultMQProducer p = producer(s);
            p.setRetryTimesWhenSendFailed(10);
            createTopic(p, s, topic);
            Child a = new Child(s.names, group, topic);
            Child b = new Child(s.names, group, topic);
            AtomicBoolean stop = new AtomicBoolean();
            AtomicInteger sent = new AtomicInteger();
            Thread feed = new Thread(() -> {
                while (!stop.get()) {
                    for (int q = 0; q < 4; q++) {
                        int queue = q;
                        for (boolean done = false; !done && !stop.get(); ) {
                            try {
                                p.send(message(topic, "", String.valueOf(sent.get())), (mqs, m, arg) -> mqs.get(queue), null);
                                done = true;
                            } catch (Exception e) {
                                done = false; // its connection was cut, too
                            }
                        }
                    }
                    sent.incrementAndGet();
                    try {
                        TimeUnit.MILLISECONDS.sleep(20);
                    } catch (InterruptedException e) {
                        return;
                    }
                }
            });
            feed.start();
            List<Set<String>> before = new ArrayList<>();
            eventually(90, "each has two queues", () -> {
                try {
                    before.clear();
                    before.add(a.share());
                    before.add(b.share());
                } catch (Exception e) {
                    throw new IllegalStateException(e);
                }
                return before.get(0).size() == 2 && before.get(1).size() == 2;
            });
            int fromA = a.got.size();
            int fromB = b.got.size();
            proxy.reset();
            a.share();
            b.share();
            TimeUnit.SECONDS.sleep(6); // longer than the grace: a rebalance would have shown by then
            a.share();
            b.share();
            assertEquals(before.get(0), a.queues(fromA));
            assertEquals(before.get(1), b.queues(fromB));
            stop.set(true);
            feed.join(20_000);
            for (Child c : new Child[] {a, b}) {
                Map<String, Integer> last = new HashMap<>();
                for (String l : c.got) {
                    String[] f = l.split(" ");
                    int n = Integer.parseInt(f[2]);
                    assertTrue(n >= last.getOrDefault(f[0], -2), "reordered: " + l);
                    last.put(f[0], n);
                }
                c.process.destroyForcibly();
            }
            p.shutdown();
        }
    }

    /** Forwards a port of one loopback address to the same port of 127.0.0.1, and can reset all connections. */
    private static final class Proxy implements AutoCloseable {
        private final ServerSocket listener;
        private final List<Socket> open = new CopyOnWriteArrayList<>();

        Proxy(String host, int port) throws Exception {
            listener = new ServerSocket(port, 50, InetAddress.getByName(host));
            daemon(() -> {
                while (true) {
                    Socket in = listener.accept();
                    Socket out = new Socket("127.0.0.1", port);
                    open.add(in);
                    open.add(out);
                    daemon(() -> pump(in, out));
                    daemon(() -> pump(out, in));
                }
            });
        }

        private interface Work {
            void run() throws Exception;
        }

        private static void daemon(Work w) {
            Thread t = new Thread(() -> {
                try {
                    w.run();
                } catch (Exception e) {
                    return; // the socket was closed
                }
            });
            t.setDaemon(true);
            t.start();
        }

        private static void pump(Socket from, Socket to) throws Exception {
            try (from; to) {
                InputStream in = from.getInputStream();
                OutputStream out = to.getOutputStream();
                byte[] b = new byte[64 << 10];
                for (int n = in.read(b); n >= 0; n = in.read(b)) {
                    out.write(b, 0, n);
                    out.flush();
                }
            }
        }

        void reset() throws Exception {
            List<Socket> cut = new ArrayList<>(open);
            open.removeAll(cut);
            for (Socket s : cut) {
                if (!s.isClosed()) {
                    s.setSoLinger(true, 0);
                    s.close();
                }
            }
        }

        @Override
        public void close() throws Exception {
            listener.close();
            reset();
        }
    }
}
