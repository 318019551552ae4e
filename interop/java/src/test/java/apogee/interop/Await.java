package apogee.interop;

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

    /** For "and nothing more comes": a moment in which the wrong thing would show. */
    static void pause(long millis) throws InterruptedException {
        TimeUnit.MILLISECONDS.sleep(millis);
    }
}
