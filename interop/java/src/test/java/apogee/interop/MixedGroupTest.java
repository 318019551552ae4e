package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageQueue;
import org.junit.jupiter.api.Timeout;

/**
 * An ordered group with members of this client and of package client, each in a process of its own: they come and go, and
 * after each change every queue has exactly one of them. Each queue is a key's: its messages are numbered.
 */
class MixedGroupTest {
    private static final int QUEUES = 16;

    private static final class Running {
        final String what;
        final Child child;
        boolean gone;

        Running(Scope t, boolean go, String namesrv, String group, String topic) throws IOException {
            String id = t.unique(go ? "Go" : "J");
            what = id;
            child = t.closing(go
                ? new Child(id, List.of(Path.of(System.getProperty("apogee.bin")).resolveSibling("gomember").toString(), namesrv, group, topic, id))
                : new Child(id, Child.testClassPath(), List.of(), Member.class, namesrv, group, topic, id));
        }

        /** The queues it has, as it said last. */
        List<Integer> queues() {
            List<Integer> out = new ArrayList<>();
            String last = "";
            for (String l : child.lines()) {
                if (l.startsWith("queues ")) {
                    String[] f = l.split(" ");
                    last = f.length > 2 ? f[2] : "";
                }
            }
            for (String q : last.split(",")) {
                if (!q.isEmpty()) {
                    out.add(Integer.parseInt(q.split("@")[0]));
                }
            }
            return out;
        }

        /** What it said last of queues that it waited for, and when: it may have them since. */
        String waits() {
            String last = "";
            for (String l : child.lines()) {
                if (l.startsWith("waits ")) {
                    last = " (" + l + ")";
                }
            }
            return last;
        }

        void stop() throws Exception {
            gone = true;
            child.write("stop");
            assertEquals(0, child.await(40), what + " ends cleanly");
        }

        void kill() throws Exception {
            gone = true;
            child.kill();
        }
    }

    private final List<Running> members = new ArrayList<>();

    /** Waits until the living members have each queue once, each member something. */
    private void shared(String after) throws Exception {
        Await.until(60, () -> "every queue has one owner after " + after + ": " + owners(), () -> {
            int[] owners = new int[QUEUES];
            for (Running m : members) {
                if (m.gone) {
                    continue;
                }
                List<Integer> queues = m.queues();
                if (queues.isEmpty()) {
                    return false;
                }
                for (int q : queues) {
                    owners[q]++;
                }
            }
            for (int n : owners) {
                if (n != 1) {
                    return false;
                }
            }
            return true;
        });
    }

    private String owners() {
        StringBuilder out = new StringBuilder();
        for (Running m : members) {
            if (!m.gone) {
                out.append(' ').append(m.what).append(m.queues()).append(m.waits());
            }
        }
        return out.toString();
    }

    @Case(value = "mixed-group", apogeeOnly = "a dead member's locks last up to 60 s")
    @Timeout(300)
    void joinsAndLeaves(Scope t) throws Exception {
        String namesrv = Scope.server().namesrv();
        DefaultMQProducer p = t.producer(namesrv);
        String topic = t.topic(p, QUEUES);
        String group = t.group();
        int[] sent = new int[QUEUES];
        boolean[] stop = new boolean[1];
        Exception[] failure = new Exception[1];
        List<MessageQueue> queues = p.fetchPublishMessageQueues(topic);
        Thread feed = new Thread(() -> {
            try {
                while (!stop[0]) {
                    for (MessageQueue q : queues) {
                        p.send(Scope.message(topic, "", q.getQueueId() + "-" + sent[q.getQueueId()]), q);
                        sent[q.getQueueId()]++;
                    }
                    TimeUnit.MILLISECONDS.sleep(20);
                }
            } catch (Exception e) {
                failure[0] = e;
            }
        }, "feed");
        feed.start();
        t.closing(() -> {
            stop[0] = true;
            feed.join(30_000);
        });
        int killed = 0;
        for (boolean go : new boolean[] {false, true, false, true}) {
            members.add(new Running(t, go, namesrv, group, topic));
            shared("a join of " + members.get(members.size() - 1).what);
        }
        members.get(0).stop();
        shared("a leave of " + members.get(0).what);
        members.get(1).stop();
        shared("a leave of " + members.get(1).what);
        for (boolean go : new boolean[] {true, false}) {
            members.add(new Running(t, go, namesrv, group, topic));
            shared("another join of " + members.get(members.size() - 1).what);
        }
        members.get(2).kill(); // Java's
        shared("the death of " + members.get(2).what);
        members.get(3).kill(); // Go's
        shared("the death of " + members.get(3).what);
        stop[0] = true;
        feed.join(30_000);
        if (failure[0] != null) {
            throw failure[0];
        }
        Await.until(60, () -> "everything consumed: " + missing(sent), () -> missing(sent).isEmpty());
        int again = checkOrder(sent);
        t.note("%d messages, %d of them again after two members were killed; every queue had one owner after 6 joins, 2 leaves and 2 deaths", total(sent), again);
    }

    private static int total(int[] sent) {
        int n = 0;
        for (int s : sent) {
            n += s;
        }
        return n;
    }

    /** By queue and number, when it was consumed each time. */
    private Map<String, List<Long>> consumed() {
        Map<String, List<Long>> out = new HashMap<>();
        for (Running m : members) {
            for (String l : m.child.lines()) {
                String[] f = l.split(" ");
                if (f[0].equals("got") && f.length == 5) { // of one that was killed the last line may be cut
                    out.computeIfAbsent(f[4], k -> new ArrayList<>()).add(Long.parseLong(f[1]));
                }
            }
        }
        return out;
    }

    private String missing(int[] sent) {
        Map<String, List<Long>> got = consumed();
        Map<Integer, Integer> missing = new TreeMap<>();
        for (int q = 0; q < QUEUES; q++) {
            for (int n = 0; n < sent[q]; n++) {
                if (!got.containsKey(q + "-" + n)) {
                    missing.merge(q, 1, Integer::sum);
                }
            }
        }
        return missing.isEmpty() ? "" : missing.toString();
    }

    /** No message is first consumed before the one in front of it. Returns how many were consumed more than once. */
    private int checkOrder(int[] sent) {
        Map<String, List<Long>> got = consumed();
        int again = 0;
        for (int q = 0; q < QUEUES; q++) {
            long before = 0;
            for (int n = 0; n < sent[q]; n++) {
                List<Long> times = got.get(q + "-" + n);
                again += times.size() - 1;
                long first = times.stream().mapToLong(Long::longValue).min().orElseThrow();
                assertTrue(first >= before, "message " + n + " of queue " + q + " was consumed " + (before - first) + " ms before the one in front of it");
                before = first;
            }
        }
        return again;
    }
}
