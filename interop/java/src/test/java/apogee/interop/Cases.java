package apogee.interop;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Optional;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.AfterTestExecutionCallback;
import org.junit.jupiter.api.extension.BeforeTestExecutionCallback;
import org.junit.jupiter.api.extension.ConditionEvaluationResult;
import org.junit.jupiter.api.extension.ExecutionCondition;
import org.junit.jupiter.api.extension.ExtensionContext;
import org.junit.jupiter.api.extension.ParameterContext;
import org.junit.jupiter.api.extension.ParameterResolver;
import org.junit.jupiter.api.extension.TestWatcher;

/**
 * Runs a {@link Case}: decides whether client and server have what it needs, hands it its {@link Scope}, ends what the
 * scope began, and writes the line of the result file (system property {@code interop.results}):
 * client, case, pass|fail|skip, seconds, note, separated by tabs.
 */
final class Cases implements ExecutionCondition, ParameterResolver, BeforeTestExecutionCallback, AfterTestExecutionCallback,
    AfterEachCallback, TestWatcher {

    private static final ExtensionContext.Namespace STORE = ExtensionContext.Namespace.create(Cases.class);
    private static final Object FILE_LOCK = new Object();

    private static Case of(ExtensionContext c) {
        return c.getRequiredTestMethod().getAnnotation(Case.class);
    }

    private static Scope scope(ExtensionContext c) {
        return c.getStore(STORE).getOrComputeIfAbsent(Scope.class, k -> new Scope(of(c).value()), Scope.class);
    }

    @Override
    public ConditionEvaluationResult evaluateExecutionCondition(ExtensionContext c) {
        if (c.getTestMethod().isEmpty()) {
            return ConditionEvaluationResult.enabled("");
        }
        Case k = of(c);
        if (!k.apogeeOnly().isEmpty() && Server.isJava()) {
            return ConditionEvaluationResult.disabled("Apogee only: " + k.apogeeOnly());
        }
        if (Client.VERSION.compareTo(k.since()) < 0) {
            return ConditionEvaluationResult.disabled("the client has it since " + k.since());
        }
        return ConditionEvaluationResult.enabled("");
    }

    @Override
    public boolean supportsParameter(ParameterContext p, ExtensionContext c) {
        return p.getParameter().getType() == Scope.class;
    }

    @Override
    public Object resolveParameter(ParameterContext p, ExtensionContext c) {
        return scope(c);
    }

    @Override
    public void beforeTestExecution(ExtensionContext c) {
        c.getStore(STORE).put("began", System.nanoTime());
    }

    @Override
    public void afterTestExecution(ExtensionContext c) {
        c.getStore(STORE).put("took", (System.nanoTime() - c.getStore(STORE).get("began", Long.class)) / 1e9);
    }

    @Override
    public void afterEach(ExtensionContext c) throws Exception {
        scope(c).close();
    }

    @Override
    public void testSuccessful(ExtensionContext c) {
        write(c, "pass", scope(c).note());
    }

    @Override
    public void testFailed(ExtensionContext c, Throwable cause) {
        write(c, "fail", scope(c).note() + " " + cause);
    }

    @Override
    public void testAborted(ExtensionContext c, Throwable cause) {
        write(c, "skip", String.valueOf(cause.getMessage()));
    }

    @Override
    public void testDisabled(ExtensionContext c, Optional<String> reason) {
        write(c, "skip", reason.orElse(""));
    }

    private static void write(ExtensionContext c, String result, String note) {
        String file = System.getProperty("interop.results", "");
        if (file.isEmpty()) {
            return;
        }
        Double took = c.getStore(STORE).get("took", Double.class);
        String server = Server.isJava() ? " on the Java server" : "";
        String line = String.format("java %s%s\t%s\t%s\t%.1f\t%s%n", Client.VERSION, server, of(c).value(), result, took == null ? 0 : took,
            oneLine(note));
        synchronized (FILE_LOCK) {
            try {
                Files.writeString(Path.of(file), line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        }
    }

    private static String oneLine(String note) {
        String s = note.strip().replaceAll("[\\s|]+", " ");
        return s.length() <= 300 ? s : s.substring(0, 300) + " …";
    }
}
