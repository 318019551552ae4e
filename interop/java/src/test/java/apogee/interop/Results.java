package apogee.interop;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.jupiter.api.extension.AfterTestExecutionCallback;
import org.junit.jupiter.api.extension.BeforeTestExecutionCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/** Writes a line for each case: client, case, pass or fail, seconds, note. The case is the method's name. */
public final class Results implements BeforeTestExecutionCallback, AfterTestExecutionCallback {
    static final Map<String, String> NOTES = new ConcurrentHashMap<>();
    private static final Map<String, Long> BEGAN = new ConcurrentHashMap<>();

    @Override
    public void beforeTestExecution(ExtensionContext c) {
        BEGAN.put(c.getUniqueId(), System.nanoTime());
    }

    @Override
    public void afterTestExecution(ExtensionContext c) throws Exception {
        String file = System.getProperty("interop.results", "");
        if (file.isEmpty() || file.startsWith("$")) {
            return;
        }
        String name = c.getRequiredTestMethod().getName().replaceAll("([A-Z]|[0-9]+)", "-$1").toLowerCase();
        double seconds = (System.nanoTime() - BEGAN.get(c.getUniqueId())) / 1e9;
        String line = String.format("java %s\t%s\t%s\t%.1f\t%s%n", System.getProperty("rocketmq.version"), name,
            c.getExecutionException().isPresent() ? "fail" : "pass", seconds, NOTES.getOrDefault(c.getRequiredTestMethod().getName(), ""));
        synchronized (Results.class) {
            Files.writeString(Path.of(file), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        }
    }
}
