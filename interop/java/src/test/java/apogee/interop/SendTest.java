package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Timeout;

/** Ways to send, and what arrives. */
class SendTest {
    private static final int MESSAGE_ILLEGAL = 13;

    @Case("send-sync")
    void sync(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(); // the first send makes it
        long before = System.currentTimeMillis();
        Map<String, SendResult> sent = new HashMap<>();
        Map<Integer, Long> next = new HashMap<>();
        for (String b : Scope.bodies("sync", 20)) {
            SendResult r = p.send(Scope.message(topic, "TagA", b));
            assertEquals(SendStatus.SEND_OK, r.getSendStatus());
            assertEquals(next.getOrDefault(r.getMessageQueue().getQueueId(), 0L), r.getQueueOffset(), "offset in its queue");
            next.put(r.getMessageQueue().getQueueId(), r.getQueueOffset() + 1);
            assertEquals(Scope.address(p, r.getMessageQueue().getBrokerName()),
                text(MessageDecoder.decodeMessageId(r.getOffsetMsgId()).getAddress()), "the id names the broker");
            sent.put(b, r);
        }
        assertEquals(Set.of(0, 1, 2, 3), next.keySet(), "a new topic's queues, taken in turn");
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        in.expect(60, sent.keySet());
        for (MessageExt m : in.messages()) {
            SendResult r = sent.get(Inbox.text(m));
            assertEquals(r.getMsgId(), m.getMsgId());
            assertEquals(r.getMessageQueue().getQueueId(), m.getQueueId());
            assertEquals(r.getQueueOffset(), m.getQueueOffset());
            assertEquals(MessageDecoder.decodeMessageId(r.getOffsetMsgId()).getOffset(), m.getCommitLogOffset());
            assertEquals("TagA", m.getTags());
            assertEquals(topic, m.getTopic());
            assertEquals(0, m.getReconsumeTimes());
            assertEquals("127.0.0.1", m.getBornHostString());
            assertTrue(before <= m.getBornTimestamp() && m.getBornTimestamp() <= m.getStoreTimestamp(), "born, then stored");
        }
    }

    private static String text(SocketAddress a) {
        InetSocketAddress i = (InetSocketAddress) a;
        return i.getAddress().getHostAddress() + ":" + i.getPort();
    }

    @Case("send-async")
    void async(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic();
        List<String> bodies = Scope.bodies("async", 200);
        CountDownLatch answered = new CountDownLatch(bodies.size());
        List<Object> wrong = Collections.synchronizedList(new ArrayList<>());
        Set<String> places = Collections.synchronizedSet(new HashSet<>());
        for (String b : bodies) {
            p.send(Scope.message(topic, "", b), new SendCallback() {
                @Override
                public void onSuccess(SendResult r) {
                    if (r.getSendStatus() != SendStatus.SEND_OK) {
                        wrong.add(r);
                    }
                    places.add(r.getMessageQueue().getQueueId() + "/" + r.getQueueOffset());
                    answered.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    wrong.add(e);
                    answered.countDown();
                }
            });
        }
        assertTrue(answered.await(30, TimeUnit.SECONDS), answered.getCount() + " not answered");
        assertEquals(List.of(), wrong);
        assertEquals(bodies.size(), places.size(), "each has a place of its own");
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        in.expect(60, bodies);
    }

    @Case("send-oneway")
    void oneWay(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        List<String> bodies = Scope.bodies("oneway", 50);
        for (String b : bodies) {
            p.sendOneway(Scope.message(topic, "", b));
        }
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        in.expect(60, bodies);
    }

    @Case("send-batch")
    void batch(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        p.send(Scope.message(topic, "", "single"), new MessageQueue(topic, queue(p, topic, 2).getBrokerName(), 2));
        List<Message> batch = new ArrayList<>();
        List<String> bodies = Scope.bodies("batch ☃ ", 40);
        for (int i = 0; i < bodies.size(); i++) {
            Message m = Scope.message(topic, "Tag" + i % 3, bodies.get(i));
            m.setKeys("key" + i);
            m.putUserProperty("number", String.valueOf(i));
            m.setFlag(i);
            batch.add(m);
        }
        SendResult r = p.send(batch, queue(p, topic, 2));
        assertEquals(SendStatus.SEND_OK, r.getSendStatus());
        assertEquals(1, r.getQueueOffset());
        String[] ids = r.getMsgId().split(",");
        String[] offsetIds = r.getOffsetMsgId().split(",");
        assertEquals(40, ids.length);
        assertEquals(40, new HashSet<>(List.of(offsetIds)).size());
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        List<String> want = new ArrayList<>(bodies);
        want.add("single");
        in.expect(60, want);
        Set<String> seen = new HashSet<>();
        for (MessageExt m : in.messages()) {
            int i = bodies.indexOf(Inbox.text(m));
            if (i < 0) {
                continue;
            }
            assertEquals(2, m.getQueueId());
            assertEquals(1 + i, m.getQueueOffset());
            seen.add(m.getMsgId());
            assertEquals(MessageDecoder.decodeMessageId(offsetIds[i]).getOffset(), m.getCommitLogOffset());
            assertEquals("Tag" + i % 3, m.getTags());
            assertEquals("key" + i, m.getKeys());
            assertEquals(String.valueOf(i), m.getUserProperty("number"));
            assertEquals(i, m.getFlag());
        }
        // a 5.x client gives the batch an id as well, which the broker adds to each message's properties, where it wins
        assertTrue(seen.equals(Set.of(ids)) || seen.size() == 1, "ids of the messages: " + seen);
    }

    private static MessageQueue queue(DefaultMQProducer p, String topic, int id) throws MQClientException {
        return p.fetchPublishMessageQueues(topic).stream().filter(q -> q.getQueueId() == id).findFirst().orElseThrow();
    }

    @Case("queue-selector")
    void selector(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 6);
        for (int i = 0; i < 12; i++) {
            SendResult r = p.send(Scope.message(topic, "", "own" + i), (queues, m, arg) -> {
                assertEquals(6, queues.size());
                return queues.get((Integer) arg);
            }, i % 6);
            assertEquals(i % 6, r.getMessageQueue().getQueueId());
            assertEquals(i / 6, r.getQueueOffset());
        }
        Map<String, Set<Integer>> places = new HashMap<>();
        for (int i = 0; i < 30; i++) {
            String key = "order-" + i % 5;
            SendResult r = p.send(Scope.message(topic, "", "hash" + i), new SelectMessageQueueByHash(), key);
            assertEquals(Math.abs(key.hashCode() % 6), r.getMessageQueue().getQueueId(), "the queue of key " + key);
            places.computeIfAbsent(key, k -> new HashSet<>()).add(r.getMessageQueue().getQueueId());
        }
        places.forEach((k, queues) -> assertEquals(1, queues.size(), "queues of key " + k));
        MessageQueue last = queue(p, topic, 5);
        assertEquals(last, p.send(Scope.message(topic, "", "explicit"), last).getMessageQueue());
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        List<String> want = new ArrayList<>(Scope.bodies("own", 12));
        want.addAll(Scope.bodies("hash", 30));
        want.add("explicit");
        in.expect(60, want);
        in.messages().stream().filter(m -> Inbox.text(m).equals("explicit")).forEach(m -> assertEquals(5, m.getQueueId()));
    }

    @Case("keys-tags-properties")
    void properties(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        byte[] bytes = new byte[512];
        for (int i = 0; i < bytes.length; i++) {
            bytes[i] = (byte) i;
        }
        Message m = new Message(topic, "测试", bytes);
        m.setKeys(Arrays.asList("k1", "订单-2", "k3"));
        m.setFlag(-7);
        m.putUserProperty("unicode", "é 订单 😀");
        m.putUserProperty("名", "value");
        m.putUserProperty("punctuation", "a=b;c,{\"d\":'e'}\\\n\t");
        m.putUserProperty("long", "x".repeat(20_000));
        SendResult r = p.send(m);
        Inbox in = new Inbox();
        t.push(Scope.server().namesrv(), t.group(), topic, "order-created || 测试", in, c -> { });
        Await.until(60, "the message", () -> in.size() == 1);
        MessageExt got = in.messages().get(0);
        assertArrayEquals(bytes, got.getBody());
        assertEquals("测试", got.getTags());
        assertEquals("k1 订单-2 k3", got.getKeys());
        assertEquals(-7, got.getFlag());
        assertEquals("é 订单 😀", got.getUserProperty("unicode"));
        assertEquals("value", got.getUserProperty("名"));
        assertEquals("a=b;c,{\"d\":'e'}\\\n\t", got.getUserProperty("punctuation"));
        assertEquals("x".repeat(20_000), got.getUserProperty("long"));
        assertEquals(r.getMsgId(), got.getMsgId());

        Message tooLong = Scope.message(topic, "", "never stored");
        tooLong.putUserProperty("long", "x".repeat(40_000));
        MQBrokerException e = assertThrows(MQBrokerException.class, () -> p.send(tooLong));
        assertEquals(MESSAGE_ILLEGAL, e.getResponseCode(), e.getErrorMessage());
    }

    @Case("body-sizes")
    @Timeout(200)
    void sizes(Scope t) throws Exception {
        DefaultMQProducer p = t.producer(Scope.server().namesrv(), c -> c.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE));
        String topic = t.topic(p, 4);
        Map<Integer, byte[]> want = new HashMap<>();
        Random random = new Random(1);
        for (int n : new int[] {1, 2, 255, 4_096, 65_536, 262_144, 262_145, 1 << 20, 4 << 20}) {
            byte[] body = new byte[n];
            random.nextBytes(body);
            want.put(n, body);
            assertEquals(SendStatus.SEND_OK, p.send(new Message(topic, body)).getSendStatus(), n + " bytes");
        }
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        Await.until(60, () -> "all sizes; got " + in.size(), () -> in.size() >= want.size());
        Set<Integer> seen = new HashSet<>();
        for (MessageExt m : in.messages()) {
            assertTrue(seen.add(m.getBody().length), m.getBody().length + " bytes came twice");
            assertArrayEquals(want.get(m.getBody().length), m.getBody());
        }
        assertEquals(want.keySet(), seen);
    }

    @Case("compressed")
    void compressed(Scope t) throws Exception {
        Map<String, Integer> kinds = Client.compressions();
        DefaultMQProducer first = t.producer();
        String topic = t.topic(first, 4);
        String big = "compress me ☃ ".repeat(20_000);
        for (String kind : kinds.keySet()) {
            DefaultMQProducer p = t.producer(Scope.server().namesrv(), c -> Client.setCompression(c, kind));
            Message m = Scope.message(topic, kind, big);
            assertEquals(SendStatus.SEND_OK, p.send(m).getSendStatus());
            p.send(Scope.message(topic, kind, "small"));
        }
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        Await.until(60, "all", () -> in.size() == 2 * kinds.size());
        Set<String> seen = new LinkedHashSet<>();
        for (MessageExt m : in.messages()) {
            if (Inbox.text(m).equals("small")) {
                assertEquals(0, m.getSysFlag() & 0x700, "a small body stays as it is");
                continue;
            }
            assertEquals(big, Inbox.text(m));
            assertTrue(m.getStoreSize() < 20_000, "stored in " + m.getStoreSize() + " bytes");
            assertEquals(kinds.get(m.getTags()), m.getSysFlag() & 0x700, "flags of " + m.getTags());
            seen.add(m.getTags());
        }
        assertEquals(kinds.keySet(), seen);
        t.note("%s", seen.stream().sorted().collect(Collectors.joining(", ")));
    }

    @Case("oversize")
    void oversize(Scope t) throws Exception {
        DefaultMQProducer usual = t.producer();
        String topic = t.topic(usual, 4);
        byte[] tooBig = new byte[(4 << 20) + 1];
        MQClientException own = assertThrows(MQClientException.class, () -> usual.send(new Message(topic, tooBig)));
        assertEquals(MESSAGE_ILLEGAL, own.getResponseCode());
        DefaultMQProducer p = t.producer(Scope.server().namesrv(), c -> {
            c.setMaxMessageSize(16 << 20);
            c.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        });
        MQBrokerException e = assertThrows(MQBrokerException.class, () -> p.send(new Message(topic, new byte[5 << 20])));
        assertEquals(MESSAGE_ILLEGAL, e.getResponseCode(), e.getErrorMessage());
        assertNotNull(e.getErrorMessage());
        assertEquals(SendStatus.SEND_OK, p.send(Scope.message(topic, "", "the connection still serves")).getSendStatus());
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        in.expect(60, List.of("the connection still serves"));
    }

    @Case("delay-level")
    void delay(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        for (MessageQueue q : p.fetchPublishMessageQueues(topic)) {
            p.send(Scope.message(topic, "", "warm up"), q);
        }
        Await.until(60, "the consumer runs", () -> in.size() == 4);
        Map<String, Long> levels = Map.of("at once", 0L, "one second", 1_000L, "five seconds", 5_000L);
        List<String> order = List.of("five seconds", "one second", "at once");
        for (String b : order) {
            Message m = Scope.message(topic, "TagD", b);
            m.setKeys("key " + b);
            m.putUserProperty("mine", b);
            m.setDelayTimeLevel(List.of(2, 1, 0).get(order.indexOf(b)));
            assertEquals(SendStatus.SEND_OK, p.send(m).getSendStatus());
        }
        Await.until(60, () -> "all of them; " + in.texts(), () -> in.size() >= 7);
        Await.pause(300);
        assertEquals(List.of("at once", "one second", "five seconds"), in.texts().subList(4, in.size()));
        for (Inbox.Got g : in.all().subList(4, 7)) {
            long level = levels.get(g.text());
            long stored = g.message().getStoreTimestamp() - g.message().getBornTimestamp();
            assertTrue(stored >= level - 20 && stored <= level + 2_000, g.text() + ": delivered " + stored + " ms after it was born");
            assertEquals(topic, g.topic());
            assertEquals("TagD", g.message().getTags());
            assertEquals("key " + g.text(), g.message().getKeys());
            assertEquals(g.text(), g.message().getUserProperty("mine"));
            if (level == 5_000) {
                t.note("level 2 (5 s) delivered after %.2f s", stored / 1e3);
            }
        }
    }

    @Case("vip-channel")
    void vipChannel(Scope t) throws Exception {
        DefaultMQProducer p = t.producer(Scope.server().namesrv(), c -> c.setVipChannelEnabled(true));
        String topic = t.topic();
        List<String> bodies = Scope.bodies("vip", 10);
        for (String b : bodies) {
            assertEquals(SendStatus.SEND_OK, p.send(new Message(topic, b.getBytes(StandardCharsets.UTF_8))).getSendStatus());
        }
        Inbox in = new Inbox();
        t.push(t.group(), topic, in);
        in.expect(60, bodies);
    }
}
