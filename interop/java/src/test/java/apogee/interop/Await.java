package apogee.interop;

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.junit.jupiter.api.Assertions;

/** Waiting with a deadline. */
final class Await {
    private Await() {
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static void until(int seconds, String what, Condition c) throws InterruptedException {
        until(seconds, () -> what, c);
    }

    /** Fails with the description, made at that moment, when the condition doesn't hold in time or throws. */
    static void until(int seconds, Supplier<String> what, Condition c) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        while (true) {
            boolean late = System.nanoTime() >= deadline;
            try {
                if (c.holds()) {
                    return;
                }
            } catch (InterruptedException | AssertionError e) {
                throw e;
            } catch (Exception e) {
                Assertions.fail(what.get(), e);
            }
            if (late) {
                Assertions.fail("not within " + seconds + " s: " + what.get());
            }
            TimeUnit.MILLISECONDS.sleep(10);
        }
    }

    /**
     * Waits until the machine has a third of its processors' time to spare, so that a duration isn't one of the cases that
     * run beside it. A machine that never is quiet is taken as it is after the seconds given.
     */
    static void quietMachine(int seconds) throws InterruptedException {
        OperatingSystemMXBean os = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
        os.getCpuLoad(); // the first call has nothing to compare with
        for (int quiet = 0; quiet < 2 && System.nanoTime() < deadline; ) {
            TimeUnit.MILLISECONDS.sleep(500);
            quiet = os.getCpuLoad() < 0.66 ? quiet + 1 : 0;
        }
    }

    /** For "and nothing more comes": a moment in which the wrong thing would show. */
    static void pause(long millis) throws InterruptedException {
        TimeUnit.MILLISECONDS.sleep(millis);
    }
}
