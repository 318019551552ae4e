package apogee.interop;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Assumptions;
import org.junit.jupiter.api.Test;

/**
 * docs/from-apache-clients.md says what each call of the Java client becomes: what it calls by that client's names must
 * exist in it. Needs no server.
 */
class GuideTest {
    private static final Path GUIDE = Path.of("../../docs/from-apache-clients.md");
    private static final List<String> PACKAGES = List.of("client.", "client.producer.", "client.producer.selector.", "client.consumer.", "client.consumer.listener.",
        "client.hook.", "client.utils.", "acl.common.");

    @Test
    void namesExist() throws Exception {
        Assumptions.assumeTrue(Client.VERSION.compareTo("5") >= 0, "the guide names calls of 5.x");
        String text = Files.readString(GUIDE);
        String java = text.substring(text.indexOf("\n## Java\n"));
        int checked = 0;
        TreeSet<String> missing = new TreeSet<>();
        Matcher m = Pattern.compile("`([A-Z]\\w+)(?:\\.(\\w+))?`").matcher(java);
        while (m.find()) {
            checked++;
            if (!exists(m.group(1), m.group(2))) {
                missing.add(m.group());
            }
        }
        assertEquals(List.of(), List.copyOf(missing), "the guide names what the client doesn't have");
        assertTrue(checked > 60, "only " + checked + " names found in the guide");
    }

    private static boolean exists(String type, String member) {
        for (String p : PACKAGES) {
            Class<?> c;
            try {
                c = Class.forName("org.apache.rocketmq." + p + type, false, GuideTest.class.getClassLoader());
            } catch (ClassNotFoundException e) {
                continue;
            }
            return member == null || Stream.concat(Arrays.stream(c.getMethods()).map(x -> x.getName()), Arrays.stream(c.getFields()).map(x -> x.getName())).anyMatch(member::equals);
        }
        return false;
    }
}
