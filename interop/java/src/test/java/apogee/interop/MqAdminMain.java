package apogee.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;

/**
 * Runs mqadmin commands, one for each line of standard input, its arguments separated by tabs, and prints a line with
 * {@link #END} after what each has printed. Knows the tools by name only, since they aren't on the class path of the tests.
 */
final class MqAdminMain {
    static final String END = "-- end of command --";

    private MqAdminMain() {
    }

    public static void main(String[] args) throws Exception {
        System.setErr(System.out);
        Method main0 = null;
        for (Method m : Class.forName("org.apache.rocketmq.tools.command.MQAdminStartup").getMethods()) {
            if (m.getName().equals("main0")) {
                main0 = m;
            }
        }
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            main0.invoke(null, line.split("\t"), null);
            System.out.println("\n" + END); // some commands don't end their last line
        }
    }
}
