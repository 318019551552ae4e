package apogee.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The Java client's side of bench/clientfigures, which starts it and says what to measure:
 * <pre>
 *   first NAMESRV GROUP PREFIX TOPICS          prints: first MILLIS
 *   handover NAMESRV GROUP TOPIC MEMBERS       prints: ready, restarted; reads: sent N; prints: result TWICE MISSING MOVED OTHERS MOVES
 *   ids NAMESRV COUNT                          prints: ids DISTINCT
 *   send NAMESRV TOPIC THREADS SECONDS         prints: rate PER_SECOND
 *   drain NAMESRV GROUP TOPIC COUNT            prints: rate PER_SECOND
 * </pre>
 */
final class FiguresMain {
    private FiguresMain() {
    }

    public static void main(String[] args) throws Exception {
        switch (args[0]) {
            case "first" -> first(args);
            case "handover" -> handover(args);
            case "ids" -> ids(args);
            case "send" -> send(args);
            case "drain" -> drain(args);
            default -> throw new IllegalArgumentException(args[0]);
        }
        Runtime.getRuntime().halt(0);
    }

    private static DefaultMQPushConsumer consumer(String namesrv, String group, MessageListenerConcurrently l) {
        DefaultMQPushConsumer c = new DefaultMQPushConsumer(group);
        c.setNamesrvAddr(namesrv);
        c.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        c.registerMessageListener(l);
        return c;
    }

    private static void first(String[] args) throws Exception {
        CountDownLatch got = new CountDownLatch(1);
        long began = System.nanoTime();
        DefaultMQPushConsumer c = consumer(args[1], args[2], (ms, ctx) -> {
            got.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        for (int i = 0; i < Integer.parseInt(args[4]); i++) {
            c.subscribe(args[3] + i, "*");
        }
        c.start();
        if (!got.await(60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("no message");
        }
        System.out.println("first " + (System.nanoTime() - began) / 1e6);
    }

    /** What all members handled; see Watch in bench/clientfigures. */
    private static final class Watch {
        final Map<Long, Integer> seen = new HashMap<>();
        final Map<Integer, Long> last = new HashMap<>();
        final Map<Integer, Long> gap = new HashMap<>();
        final Map<Integer, String> owner = new HashMap<>();
        final Set<Integer> moved = new HashSet<>();
        long worstMoved;
        long worstOthers;
        int moves;

        synchronized void got(String who, MessageExt m) {
            long now = System.nanoTime();
            int q = m.getQueueId();
            seen.merge(ByteBuffer.wrap(m.getBody()).getLong(), 1, Integer::sum);
            Long before = last.put(q, now);
            if (before != null) {
                gap.merge(q, now - before, Math::max);
            }
            String o = owner.put(q, who);
            if (o != null && !o.equals(who)) {
                moved.add(q);
            }
        }

        synchronized void round(boolean counts) {
            for (Map.Entry<Integer, Long> e : gap.entrySet()) {
                if (!counts) {
                    break;
                }
                if (moved.contains(e.getKey())) {
                    worstMoved = Math.max(worstMoved, e.getValue());
                    moves++;
                } else {
                    worstOthers = Math.max(worstOthers, e.getValue());
                }
            }
            gap.clear();
            moved.clear();
        }

        synchronized int distinct() {
            return seen.size();
        }
    }

    private static void handover(String[] args) throws Exception {
        Watch w = new Watch();
        List<DefaultMQPushConsumer> group = new ArrayList<>();
        int members = Integer.parseInt(args[4]);
        for (int i = 0; i < members; i++) {
            group.add(join(args, w, "m" + i));
        }
        System.out.println("ready");
        TimeUnit.SECONDS.sleep(25); // until all of them have looked at the group again
        w.round(false);
        for (int i = 0; i < members; i++) {
            group.get(i).shutdown();
            TimeUnit.MILLISECONDS.sleep(500);
            group.set(i, join(args, w, "n" + i));
            TimeUnit.MILLISECONDS.sleep(500);
            w.round(true);
        }
        System.out.println("restarted");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        long sent = Long.parseLong(in.readLine().split(" ")[1]);
        for (int i = 0; i < 3000 && w.distinct() < sent; i++) {
            TimeUnit.MILLISECONDS.sleep(10);
        }
        w.round(true);
        synchronized (w) {
            long twice = w.seen.values().stream().filter(n -> n > 1).count();
            System.out.println("result " + twice + " " + (sent - w.seen.size()) + " " + w.worstMoved / 1_000_000 + " " + w.worstOthers / 1_000_000 + " " + w.moves);
        }
    }

    private static DefaultMQPushConsumer join(String[] args, Watch w, String name) throws Exception {
        DefaultMQPushConsumer c = consumer(args[1], args[2], (ms, ctx) -> {
            for (MessageExt m : ms) {
                w.got(name, m);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.subscribe(args[3], "*");
        c.setAwaitTerminationMillisWhenShutdown(10_000); // its best: handlers end first
        c.start();
        return c;
    }

    private static void ids(String[] args) throws Exception {
        Set<String> ids = new HashSet<>();
        for (int i = 0; i < Integer.parseInt(args[2]); i++) {
            DefaultMQPushConsumer c = consumer(args[1], "ids" + i, (ms, ctx) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
            c.subscribe("ids", "*");
            c.start();
            ids.add(c.getDefaultMQPushConsumerImpl().getmQClientFactory().getClientId());
        }
        System.out.println("ids " + ids.size());
    }

    private static void send(String[] args) throws Exception {
        DefaultMQProducer p = new DefaultMQProducer("figures");
        p.setNamesrvAddr(args[1]);
        p.start();
        int threads = Integer.parseInt(args[3]);
        long seconds = Long.parseLong(args[4]);
        AtomicLong sent = new AtomicLong();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(2 * seconds); // the first half warms up
        List<Thread> all = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread t = new Thread(() -> {
                byte[] body = new byte[1024];
                while (System.nanoTime() < end) {
                    try {
                        p.send(new Message(args[2], body));
                        sent.incrementAndGet();
                    } catch (Exception e) {
                        throw new IllegalStateException(e);
                    }
                }
            });
            t.start();
            all.add(t);
        }
        TimeUnit.SECONDS.sleep(seconds);
        long warm = sent.get();
        for (Thread t : all) {
            t.join();
        }
        System.out.println("rate " + (sent.get() - warm) / seconds);
    }

    private static void drain(String[] args) throws Exception {
        AtomicLong got = new AtomicLong();
        AtomicLong began = new AtomicLong();
        long count = Long.parseLong(args[4]);
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer c = consumer(args[1], args[2], (ms, ctx) -> {
            began.compareAndSet(0, System.nanoTime());
            if (got.addAndGet(ms.size()) >= count) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        c.subscribe(args[3], "*");
        c.start();
        if (!done.await(120, TimeUnit.SECONDS)) {
            throw new IllegalStateException("only " + got.get());
        }
        System.out.println("rate " + (long) (count / ((System.nanoTime() - began.get()) / 1e9)));
    }
}
