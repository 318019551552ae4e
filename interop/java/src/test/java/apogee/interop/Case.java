package apogee.interop;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.ExtendWith;

/** A row of the interop table. The method may take a {@link Scope}, which gives it its server, clients and names. */
@Target(ElementType.METHOD)
@Retention(RetentionPolicy.RUNTIME)
@Test
@ExtendWith(Cases.class)
@interface Case {
    /** The row's name; the other clients' suites use the same names for the same cases. */
    String value();

    /** Why the Java server can't pass; empty when it can. The case is skipped when that is the server under test. */
    String apogeeOnly() default "";

    /** First client version that has what the case needs. */
    String since() default "4";
}
