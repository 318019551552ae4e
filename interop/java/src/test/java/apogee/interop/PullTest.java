package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullCallback;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Consumers that ask for their messages. */
class PullTest {
    private static void pollUntil(DefaultLitePullConsumer c, List<String> into, int n) throws InterruptedException {
        Await.until(60, () -> n + " messages; got " + into.size(), () -> {
            c.poll(200).forEach(m -> into.add(Inbox.text(m)));
            return into.size() >= n;
        });
        c.poll(300).forEach(m -> into.add(Inbox.text(m)));
    }

    @Case("lite-pull-subscribe")
    void liteSubscribe(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        String group = t.group();
        for (int i = 0; i < 40; i++) {
            p.send(Scope.message(topic, i % 2 == 0 ? "even" : "odd", "m" + i));
        }
        DefaultLitePullConsumer c = t.lite(group);
        c.subscribe(topic, "even");
        c.start();
        List<String> got = new ArrayList<>();
        pollUntil(c, got, 20);
        List<String> want = new ArrayList<>();
        for (int i = 0; i < 40; i += 2) {
            want.add("m" + i);
        }
        assertEquals(Inbox.count(want), Inbox.count(got));
        assertEquals(4, c.assignment().size());

        c.pause(c.assignment());
        Await.pause(500);
        p.send(Scope.message(topic, "even", "paused"));
        List<String> paused = new ArrayList<>();
        for (int i = 0; i < 5; i++) {
            c.poll(200).forEach(m -> paused.add(Inbox.text(m)));
        }
        // a pull that was parked before the pause may still bring one
        assertTrue(paused.size() <= 1, "polled while paused: " + paused);
        c.resume(c.assignment());
        pollUntil(c, paused, 1);
        assertEquals(List.of("paused"), paused);
        c.commitSync();
        c.shutdown();

        p.send(Scope.message(topic, "even", "later"));
        DefaultLitePullConsumer next = t.lite(group);
        next.subscribe(topic, "even");
        next.start();
        List<String> rest = new ArrayList<>();
        pollUntil(next, rest, 1);
        assertEquals(List.of("later"), rest, "it goes on where the group stopped");
    }

    @Case("lite-pull-assign")
    void liteAssign(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        List<String> bodies = Scope.bodies("m", 40);
        Scope.sendAll(p, topic, bodies);
        DefaultLitePullConsumer c = t.lite(t.group());
        c.setAutoCommit(false);
        c.start();
        Collection<MessageQueue> queues = c.fetchMessageQueues(topic);
        assertEquals(4, queues.size());
        c.assign(queues);
        for (MessageQueue q : queues) {
            Await.until(60, "the client knows the broker", () -> {
                try {
                    c.seekToBegin(q);
                    return true;
                } catch (MQClientException e) {
                    return false;
                }
            });
        }
        List<String> got = new ArrayList<>();
        pollUntil(c, got, 40);
        assertEquals(Inbox.count(bodies), Inbox.count(got));

        MessageQueue one = new TreeSet<>(queues).first();
        c.commitSync();
        Await.until(60, "the offset is on the broker", () -> {
            Long at = c.committed(one);
            return at != null && at == 10;
        });
        c.assign(List.of(one));
        c.seek(one, 7);
        List<String> tail = new ArrayList<>();
        pollUntil(c, tail, 3);
        assertEquals(3, tail.size(), "offsets 7 to 9 of one queue: " + tail);
        assertEquals(0L, c.offsetForTimestamp(one, 0L));
        assertEquals(10L, c.offsetForTimestamp(one, System.currentTimeMillis() + 60_000));
        c.seekToEnd(one);
        p.send(Scope.message(topic, "", "at the end"), one);
        List<String> last = new ArrayList<>();
        pollUntil(c, last, 1);
        assertEquals(List.of("at the end"), last);
    }

    @Case("old-pull-consumer")
    @SuppressWarnings("deprecation")
    void old(Scope t) throws Exception {
        DefaultMQProducer p = t.producer();
        String topic = t.topic(p, 4);
        for (int i = 0; i < 40; i++) {
            p.send(Scope.message(topic, i % 4 == 0 ? "A" : "B", "m" + i), (queues, m, arg) -> queues.get((Integer) arg), i / 4 % 4);
        }
        String group = t.group();
        DefaultMQPullConsumer c = t.pull(Scope.server().namesrv(), group);
        c.start();
        Set<MessageQueue> queues = c.fetchSubscribeMessageQueues(topic);
        assertEquals(4, queues.size());
        List<String> got = new ArrayList<>();
        long total = 0;
        for (MessageQueue q : queues) {
            assertEquals(0, c.minOffset(q));
            assertEquals(0, c.searchOffset(q, 0));
            assertEquals(c.maxOffset(q), c.searchOffset(q, System.currentTimeMillis() + 60_000));
            assertTrue(c.earliestMsgStoreTime(q) <= System.currentTimeMillis() && c.earliestMsgStoreTime(q) > System.currentTimeMillis() - 600_000);
            long at = 0;
            while (true) {
                PullResult r = c.pull(q, "*", at, 3);
                if (r.getPullStatus() != PullStatus.FOUND) {
                    assertEquals(PullStatus.NO_NEW_MSG, r.getPullStatus());
                    break;
                }
                assertTrue(r.getMsgFoundList().size() <= 3, "no more than asked for");
                for (MessageExt m : r.getMsgFoundList()) {
                    assertEquals(at++, m.getQueueOffset());
                    got.add(Inbox.text(m));
                }
                assertEquals(at, r.getNextBeginOffset());
                assertEquals(c.maxOffset(q), r.getMaxOffset());
                assertEquals(0, r.getMinOffset());
            }
            assertEquals(at, c.maxOffset(q));
            total += at;
            PullResult beyond = c.pull(q, "*", at + 100, 32);
            assertEquals(PullStatus.OFFSET_ILLEGAL, beyond.getPullStatus());
            assertEquals(at, beyond.getNextBeginOffset());
            PullResult filtered = c.pull(q, "A || nobody", 0, 32);
            filtered.getMsgFoundList().forEach(m -> assertEquals("A", m.getTags()));
            PullResult none = c.pull(q, "nobody", 0, 32);
            assertEquals(PullStatus.NO_MATCHED_MSG, none.getPullStatus());
            assertEquals(at, none.getNextBeginOffset());
        }
        assertEquals(40, total);
        assertEquals(Inbox.count(Scope.bodies("m", 40)), Inbox.count(got));

        MessageQueue q = new TreeSet<>(queues).first();
        long end = c.maxOffset(q);
        CompletableFuture<PullResult> parked = new CompletableFuture<>();
        c.pullBlockIfNotFound(q, "*", end, 32, new PullCallback() {
            @Override
            public void onSuccess(PullResult r) {
                parked.complete(r);
            }

            @Override
            public void onException(Throwable e) {
                parked.completeExceptionally(e);
            }
        });
        Await.pause(1_000);
        assertFalse(parked.isDone(), "a pull at the end is held");
        p.send(Scope.message(topic, "", "wakes it"), q);
        PullResult woken = parked.get(5, TimeUnit.SECONDS);
        assertEquals(PullStatus.FOUND, woken.getPullStatus());
        assertEquals("wakes it", Inbox.text(woken.getMsgFoundList().get(0)));

        c.getOffsetStore().updateConsumeOffsetToBroker(q, 7, false);
        assertEquals(7, c.fetchConsumeOffset(q, true), "the offset of the group on the broker");
    }
}
