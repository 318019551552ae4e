package protocol

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Field is one custom header field. Key and Value are views of a frame, or owned by whoever made the field.
type Field struct{ Key, Value []byte }

// Fields are the custom fields of a header in the order they came in.
type Fields []Field

// Get returns the value of key; of equal keys the last counts, as in Java's map.
func (f Fields) Get(key string) ([]byte, bool) {
	for i := len(f) - 1; i >= 0; i-- {
		if string(f[i].Key) == key {
			return f[i].Value, true
		}
	}
	return nil, false
}

// FieldError says that a request's header field is missing or can't be read.
type FieldError struct {
	Field   string
	Value   string
	Missing bool
	Want    string // what the value should have been
}

func (e *FieldError) Error() string {
	if e.Missing {
		return fmt.Sprintf("header field %s is missing", e.Field)
	}
	return fmt.Sprintf("header field %s is %q, want %s", e.Field, e.Value, e.Want)
}

// FieldsEncoder writes its custom fields.
type FieldsEncoder interface{ EncodeFields(w *FieldWriter) }

// FieldsDecoder reads its custom fields. It reports a missing required field with a *FieldError and ignores
// fields it doesn't know.
type FieldsDecoder interface{ DecodeFields(f Fields) error }

// FieldWriter writes custom header fields in one of the two encodings, straight into the frame's buffer.
type FieldWriter struct {
	buf    []byte
	binary bool
	n      int
}

// NewFieldWriter appends to buf: binary pairs, or the members of a JSON object without its braces.
func NewFieldWriter(buf []byte, binary bool) FieldWriter {
	return FieldWriter{buf: buf, binary: binary}
}

// Buffer returns what was written, behind the buffer that was given.
func (w *FieldWriter) Buffer() []byte { return w.buf }

// key begins a pair whose value has n bytes in the binary form.
func (w *FieldWriter) key(k string, n int) {
	if w.binary {
		w.buf = binary.BigEndian.AppendUint16(w.buf, uint16(len(k)))
		w.buf = append(w.buf, k...)
		w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(n))
		return
	}
	if w.n > 0 {
		w.buf = append(w.buf, ',')
	}
	w.n++
	w.buf = append(w.buf, '"')
	w.buf = append(w.buf, k...) // keys are ours: plain ASCII
	w.buf = append(w.buf, '"', ':')
}

// String writes a text field.
func (w *FieldWriter) String(k, v string) {
	w.key(k, len(v))
	if w.binary {
		w.buf = append(w.buf, v...)
		return
	}
	w.buf = AppendJSONString(w.buf, v)
}

// Bytes writes a text field.
func (w *FieldWriter) Bytes(k string, v []byte) {
	w.key(k, len(v))
	if w.binary {
		w.buf = append(w.buf, v...)
		return
	}
	w.buf = AppendJSONString(w.buf, string(v))
}

// Int writes a decimal number.
func (w *FieldWriter) Int(k string, v int64) {
	var text [20]byte
	b := strconv.AppendInt(text[:0], v, 10)
	w.key(k, len(b))
	if w.binary {
		w.buf = append(w.buf, b...)
		return
	}
	w.buf = append(w.buf, '"')
	w.buf = append(w.buf, b...)
	w.buf = append(w.buf, '"')
}

// Bool writes true or false.
func (w *FieldWriter) Bool(k string, v bool) {
	if v {
		w.String(k, "true")
	} else {
		w.String(k, "false")
	}
}

// Fields writes ready-made fields. Keys must be plain ASCII.
func (w *FieldWriter) Fields(fields Fields) {
	for i := range fields {
		w.Bytes(string(fields[i].Key), fields[i].Value)
	}
}

const lowerHex = "0123456789abcdef"

// asciiPlain tells the bytes that stand for themselves in a JSON text and are no part of a longer character.
var asciiPlain = func() (t [256]bool) {
	for c := ' '; c < utf8.RuneSelf; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

// AppendJSONString appends s as a JSON string: control characters, quotes and backslashes escaped, the rest as
// it is; malformed UTF-8 becomes U+FFFD.
func AppendJSONString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	plain := 0
	for plain < len(s) && asciiPlain[s[plain]] {
		plain++
	}
	if plain == len(s) { // the rule
		dst = append(dst, s...)
		return append(dst, '"')
	}
	begin := 0
	for i := plain; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			dst = append(dst, s[begin:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', lowerHex[c>>4], lowerHex[c&15])
			}
			i++
			begin = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			dst = append(dst, s[begin:i]...)
			dst = append(dst, "\ufffd"...)
			i++
			begin = i
			continue
		}
		i += n
	}
	dst = append(dst, s[begin:]...)
	return append(dst, '"')
}

// Values of fields, with the errors that name them.

// number reads a whole number of 32 or 64 bits. It allocates nothing.
func number(v []byte, bits int) (int64, bool) {
	n := len(v)
	if n == 0 || n > 20 {
		return 0, false
	}
	digits := v
	if v[0] == '-' || v[0] == '+' {
		digits = v[1:]
	}
	if len(digits) == 0 || len(digits) > 19 {
		return 0, false
	}
	var x uint64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		x = x*10 + uint64(c-'0')
	}
	limit := uint64(math.MaxInt64)
	if bits == 32 {
		limit = math.MaxInt32
	}
	if v[0] == '-' {
		if x > limit+1 {
			return 0, false
		}
		return -int64(x), true
	}
	return int64(x), x <= limit
}

func notNumber(key string, v []byte, bits int) error {
	return &FieldError{Field: key, Value: string(v), Want: fmt.Sprintf("a %d-bit whole number", bits)}
}

func parseInt(key string, v []byte, bits int) (int64, error) {
	x, ok := number(v, bits)
	if !ok {
		return 0, notNumber(key, v, bits)
	}
	return x, nil
}

// parseBool is Java's: true in any case of letters, anything else is false.
func parseBool(v []byte) bool { return len(v) == 4 && strings.EqualFold(string(v), "true") }

// Decode fills the header struct that v points to. A type that decodes itself does; otherwise each exported
// field with a tag `f:"name"` is taken from the field of that name. Tags end in ",required" for fields without
// which the request means nothing: a missing one gives a *FieldError. Strings, int32, int64, float64, bool and
// pointers to them are known; a pointer stays nil when the field is absent.
func Decode(f Fields, v any) error {
	if d, ok := v.(FieldsDecoder); ok {
		return d.DecodeFields(f)
	}
	s := reflect.ValueOf(v).Elem()
	t := s.Type()
	for i := range t.NumField() {
		name, required, ok := fieldTag(t.Field(i))
		if !ok {
			continue
		}
		raw, found := f.Get(name)
		if !found {
			if required {
				return &FieldError{Field: name, Missing: true}
			}
			continue
		}
		dst := s.Field(i)
		if dst.Kind() == reflect.Pointer {
			dst.Set(reflect.New(dst.Type().Elem()))
			dst = dst.Elem()
		}
		switch dst.Kind() {
		case reflect.String:
			dst.SetString(string(raw))
		case reflect.Int32, reflect.Int64:
			x, err := parseInt(name, raw, dst.Type().Bits())
			if err != nil {
				return err
			}
			dst.SetInt(x)
		case reflect.Bool:
			dst.SetBool(parseBool(raw))
		case reflect.Float64:
			x, err := strconv.ParseFloat(string(raw), 64)
			if err != nil {
				return &FieldError{Field: name, Value: string(raw), Want: "a number"}
			}
			dst.SetFloat(x)
		default:
			panic("protocol: field " + name + " has a kind that Decode doesn't know")
		}
	}
	return nil
}

// Encode writes the fields of a header struct: a type that encodes itself does, others by their tags as Decode
// reads them. Nil pointers and empty strings are left out.
func Encode(w *FieldWriter, v any) {
	if e, ok := v.(FieldsEncoder); ok {
		e.EncodeFields(w)
		return
	}
	s := reflect.Indirect(reflect.ValueOf(v))
	t := s.Type()
	for i := range t.NumField() {
		name, _, ok := fieldTag(t.Field(i))
		if !ok {
			continue
		}
		src := s.Field(i)
		if src.Kind() == reflect.Pointer {
			if src.IsNil() {
				continue
			}
			src = src.Elem()
		}
		switch src.Kind() {
		case reflect.String:
			if src.String() != "" {
				w.String(name, src.String())
			}
		case reflect.Int32, reflect.Int64:
			w.Int(name, src.Int())
		case reflect.Bool:
			w.Bool(name, src.Bool())
		case reflect.Float64:
			w.String(name, strconv.FormatFloat(src.Float(), 'f', -1, 64))
		default:
			panic("protocol: field " + name + " has a kind that Encode doesn't know")
		}
	}
}

func fieldTag(f reflect.StructField) (name string, required, ok bool) {
	tag, ok := f.Tag.Lookup("f")
	if !ok {
		return "", false, false
	}
	name, rest, _ := strings.Cut(tag, ",")
	return name, rest == "required", true
}

// Empty is a header without fields: its answer carries an empty extFields object, as Java's does.
type Empty struct{}

// EncodeFields implements FieldsEncoder.
func (Empty) EncodeFields(*FieldWriter) {}
