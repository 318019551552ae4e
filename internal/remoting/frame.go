package remoting

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/apogeemq/apogee/internal/fastjson"
	"github.com/apogeemq/apogee/internal/protocol"
)

// A frame, all integers big-endian:
//
//	0        4       5              8
//	+--------+-------+--------------+--------+------+
//	| length | type  | header length| header | body |
//	+--------+-------+--------------+--------+------+
//
// length counts what follows it. type is 0 for a JSON header, 1 for a binary one. A whole frame has at most
// MaxFrame bytes.
const (
	// MaxFrame is the largest legal frame in bytes, its length field included (Java's default).
	MaxFrame = 16 << 20

	frameHeader = 8
)

// Type is the encoding of a header.
type Type uint8

// The two encodings.
const (
	JSON   Type = 0
	Binary Type = 1
)

// Flag bits of a header.
const (
	flagResponse = 1
	flagOneWay   = 2
)

// Command is one frame. Of a received one, Fields and Body are views of the connection's buffer, valid until the
// Handler returns; Clone makes a copy that stays.
type Command struct {
	Type     Type
	Code     int32 // a RequestCode or, in an answer, a ResponseCode
	Language protocol.Language
	Version  int32
	Opaque   int32
	Flag     int32
	Remark   string
	Fields   protocol.Fields
	Body     []byte
}

// IsResponse reports whether the frame is an answer.
func (c *Command) IsResponse() bool { return c.Flag&flagResponse != 0 }

// IsOneWay reports whether no answer is wanted.
func (c *Command) IsOneWay() bool { return c.Flag&flagOneWay != 0 }

// Clone returns a copy that shares nothing with a connection's buffer.
func (c *Command) Clone() *Command {
	d := *c
	n := len(c.Body)
	for i := range c.Fields {
		n += len(c.Fields[i].Key) + len(c.Fields[i].Value)
	}
	all := make([]byte, 0, n)
	keep := func(b []byte) []byte {
		begin := len(all)
		all = append(all, b...)
		return all[begin:len(all):len(all)]
	}
	d.Fields = make(protocol.Fields, len(c.Fields))
	for i := range c.Fields {
		d.Fields[i] = protocol.Field{Key: keep(c.Fields[i].Key), Value: keep(c.Fields[i].Value)}
	}
	d.Body = keep(c.Body)
	return &d
}

// FrameError says why a frame can't be one. The connection it came from is closed, as Java closes it: what
// follows can't be told from garbage.
type FrameError struct {
	Kind string // what is counted
	Text string
}

func (e *FrameError) Error() string { return e.Text }

func frameError(kind, format string, args ...any) error {
	return &FrameError{Kind: kind, Text: fmt.Sprintf(format, args...)}
}

// frameSize returns the size of the frame that begins with b (at least 4 bytes), or why it can't be one.
func frameSize(b []byte, limit int) (int, error) {
	n := int64(int32(binary.BigEndian.Uint32(b)))
	switch {
	case b[0] == 0x16:
		return 0, frameError("tls", "the peer speaks TLS, which this listener doesn't: switch TLS off in the client")
	case string(b[:4]) == "PROX" || string(b[:4]) == "\r\n\r\n":
		return 0, frameError("proxy", "the peer speaks the PROXY protocol, which this listener doesn't: switch it off in the load balancer")
	case string(b[:4]) == "GET " || string(b[:4]) == "POST" || string(b[:4]) == "HEAD":
		return 0, frameError("http", "the peer speaks HTTP: the health and metrics address is another one")
	case n < 0:
		return 0, frameError("negative_length", "frame length %d is negative", n)
	case n < 4:
		return 0, frameError("short_length", "frame length %d is less than the 4 bytes of a header length", n)
	case n+4 > int64(limit):
		return 0, frameError("too_long", "frame of %d bytes is longer than the %d allowed", n+4, limit)
	}
	return int(n) + 4, nil
}

// decoder reads frames; its buffers are reused from frame to frame.
type decoder struct {
	fields  protocol.Fields
	scratch []byte // unescaped texts
}

// decode reads the whole frame b into c.
func (d *decoder) decode(b []byte, c *Command) error {
	word := binary.BigEndian.Uint32(b[4:])
	n := int(word & 0xFFFFFF)
	if n > len(b)-frameHeader {
		return frameError("header_length", "header of %d bytes in a frame of %d", n, len(b))
	}
	header := b[frameHeader : frameHeader+n]
	d.fields, d.scratch = d.fields[:0], d.scratch[:0]
	*c = Command{Type: Type(word >> 24), Body: b[frameHeader+n:]}
	var err error
	switch c.Type {
	case JSON:
		if !d.scanJSON(header, c) {
			d.fields, d.scratch = d.fields[:0], d.scratch[:0]
			err = d.tolerantJSON(header, c)
		}
	case Binary:
		err = d.binary(header, c)
	default:
		err = frameError("serialize_type", "serialize type %d is neither 0 (JSON) nor 1 (ROCKETMQ)", word>>24)
	}
	c.Fields = d.fields
	return err
}

// scanJSON reads the headers that clients really send, in one pass and without allocating. It gives up (false)
// on anything unusual; tolerantJSON then has the last word.
func (d *decoder) scanJSON(b []byte, c *Command) bool {
	s := scanner{b: b, d: d}
	if !s.take('{') {
		return false
	}
	sawCode := false
	for first := true; ; first = false {
		if s.take('}') {
			break
		}
		if !first && !s.take(',') {
			return false
		}
		key, ok := s.text()
		if !ok || !s.take(':') {
			return false
		}
		switch string(key) {
		case "code":
			ok = s.int32(&c.Code)
			sawCode = true
		case "flag":
			ok = s.int32(&c.Flag)
		case "opaque":
			ok = s.int32(&c.Opaque)
		case "version":
			ok = s.int32(&c.Version)
		case "language":
			var v []byte
			v, ok = s.text()
			c.Language = protocol.ParseLanguage(v)
		case "remark":
			var v []byte
			v, ok = s.text()
			c.Remark = string(v)
		case "serializeTypeCurrentRPC":
			_, ok = s.text()
		case "extFields":
			ok = s.object()
		default:
			return false
		}
		if !ok {
			return false
		}
	}
	s.space()
	return s.at == len(b) && sawCode
}

type scanner struct {
	b  []byte
	at int
	d  *decoder
}

func (s *scanner) space() {
	if s.at < len(s.b) && s.b[s.at] > ' ' { // the rule: clients write none
		return
	}
	for s.at < len(s.b) && (s.b[s.at] == ' ' || s.b[s.at] == '\n' || s.b[s.at] == '\t' || s.b[s.at] == '\r') {
		s.at++
	}
}

func (s *scanner) take(c byte) bool {
	s.space()
	if s.at < len(s.b) && s.b[s.at] == c {
		s.at++
		return true
	}
	return false
}

func (s *scanner) int32(dst *int32) bool {
	s.space()
	begin := s.at
	if s.at < len(s.b) && s.b[s.at] == '-' {
		s.at++
	}
	var x int64
	digits := s.at
	for s.at < len(s.b) && s.b[s.at] >= '0' && s.b[s.at] <= '9' && s.at-digits < 11 {
		x = x*10 + int64(s.b[s.at]-'0')
		s.at++
	}
	if s.b[begin] == '-' {
		x = -x
	}
	*dst = int32(x)
	return s.at > digits && int64(*dst) == x
}

// object reads a flat object of texts into the decoder's fields.
func (s *scanner) object() bool {
	s.space()
	at, fields := s.at, len(s.d.fields)
	if s.compactObject() {
		return true
	}
	s.at, s.d.fields = at, s.d.fields[:fields]
	if !s.take('{') {
		return false
	}
	for first := true; ; first = false {
		if s.take('}') {
			return true
		}
		if !first && !s.take(',') {
			return false
		}
		key, ok := s.text()
		if !ok || !s.take(':') {
			return false
		}
		value, ok := s.text()
		if !ok {
			return false
		}
		s.d.fields = append(s.d.fields, protocol.Field{Key: key, Value: value})
	}
}

// plain tells the bytes that stand for themselves in a text.
var plain = func() (t [256]bool) {
	for c := range t {
		t[c] = c >= ' ' && c != '"' && c != '\\'
	}
	return t
}()

// compactObject is object for the form that clients write, without white space. Its place is a local variable: this
// is the innermost loop of the server. It reports false for anything else, and then has read nothing that counts.
func (s *scanner) compactObject() bool {
	b, at, fields := s.b, s.at, s.d.fields
	if at+1 >= len(b) || b[at] != '{' || b[at+1] != '"' {
		return false
	}
	for at++; ; {
		if at >= len(b) || b[at] != '"' {
			return false
		}
		at++
		begin := at
		for at < len(b) && plain[b[at]] {
			at++
		}
		if at+2 >= len(b) || b[at] != '"' || b[at+1] != ':' || b[at+2] != '"' {
			return false
		}
		key := b[begin:at]
		at += 3
		begin = at
		for end := min(at+16, len(b)); at < end && plain[b[at]]; {
			at++
		}
		if at == begin+16 {
			at += plainRun(b[at:])
		}
		if at >= len(b) {
			return false
		}
		value := b[begin:at]
		if b[at] == '\\' {
			var ok bool
			s.at = at
			if value, ok = s.escaped(begin); !ok {
				return false
			}
			at = s.at
		} else if b[at] == '"' {
			at++
		} else {
			return false
		}
		fields = append(fields, protocol.Field{Key: key, Value: value})
		if at >= len(b) {
			return false
		}
		switch b[at] {
		case ',':
			at++
		case '}':
			s.at, s.d.fields = at+1, fields
			return true
		default:
			return false
		}
	}
}

// text reads a quoted text: a view of the header, or of the scratch where it holds escapes.
func (s *scanner) text() ([]byte, bool) {
	if !s.take('"') {
		return nil, false
	}
	begin := s.at
	s.at += plainRun(s.b[begin:])
	switch {
	case s.at == len(s.b):
		return nil, false
	case s.b[s.at] == '"':
		t := s.b[begin:s.at]
		s.at++
		return t, true
	case s.b[s.at] == '\\':
		return s.escaped(begin)
	}
	return nil, false
}

// plainRun returns how many bytes of a text come before the next quote, backslash or control character, eight at a
// time while there are as many. Bytes above 0x7F, parts of UTF-8, are plain.
func plainRun(b []byte) int {
	const ones, high = 0x0101010101010101, 0x8080808080808080
	n := 0
	for ; len(b)-n >= 8; n += 8 {
		w := binary.LittleEndian.Uint64(b[n:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		// The lowest bit set in each is exact: a borrow only spoils bytes behind one that is found.
		found := ((quote-ones) & ^quote | (slash-ones) & ^slash | (w-ones*' ') & ^w) & high
		if found != 0 {
			return n + bits.TrailingZeros64(found)/8
		}
	}
	for n < len(b) && b[n] != '"' && b[n] != '\\' && b[n] >= ' ' {
		n++
	}
	return n
}

// escaped continues a text at its first backslash.
func (s *scanner) escaped(begin int) ([]byte, bool) {
	out := append(s.d.scratch, s.b[begin:s.at]...)
	from := len(s.d.scratch)
	for s.at < len(s.b) {
		c := s.b[s.at]
		switch {
		case c == '"':
			s.at++
			s.d.scratch = out
			return out[from:len(out):len(out)], true
		case c < ' ':
			return nil, false
		case c != '\\':
			// Copy the run up to the next quote or backslash at once.
			n := plainRun(s.b[s.at:])
			out = append(out, s.b[s.at:s.at+n]...)
			s.at += n
		case s.at+1 >= len(s.b):
			return nil, false
		default:
			e := s.b[s.at+1]
			s.at += 2
			switch e {
			case '"', '\\', '/':
				out = append(out, e)
			case 'n':
				out = append(out, '\n')
			case 't':
				out = append(out, '\t')
			case 'r':
				out = append(out, '\r')
			case 'b':
				out = append(out, '\b')
			case 'f':
				out = append(out, '\f')
			case 'u':
				if c, ok := s.separator(); ok {
					out = append(out, c)
					continue
				}
				r, ok := s.hex4()
				if !ok {
					return nil, false
				}
				if utf16.IsSurrogate(r) {
					if s.at+6 > len(s.b) || s.b[s.at] != '\\' || s.b[s.at+1] != 'u' {
						return nil, false
					}
					s.at += 2
					low, ok := s.hex4()
					if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
						return nil, false
					}
				}
				out = utf8.AppendRune(out, r)
			default:
				return nil, false
			}
		}
	}
	return nil, false
}

// separator reads 0001 and 0002, the separators of properties: most of the escapes that clients send.
func (s *scanner) separator() (byte, bool) {
	if s.at+4 > len(s.b) || s.b[s.at] != '0' || s.b[s.at+1] != '0' || s.b[s.at+2] != '0' || s.b[s.at+3] != '1' && s.b[s.at+3] != '2' {
		return 0, false
	}
	s.at += 4
	return s.b[s.at-1] - '0', true
}

func (s *scanner) hex4() (rune, bool) {
	if s.at+4 > len(s.b) {
		return 0, false
	}
	var r rune
	for _, c := range s.b[s.at : s.at+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, false
		}
	}
	s.at += 4
	return r, true
}

// tolerantJSON reads what Java's parser would: names in any case and with underscores, numbers in quotes,
// values of any kind in extFields, null for anything.
func (d *decoder) tolerantJSON(b []byte, c *Command) error {
	body := c.Body
	*c = Command{Type: JSON, Body: body}
	plain, err := fastjson.Normalize(b)
	if err != nil {
		return frameError("bad_header", "header is no JSON: %v", err)
	}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(plain, &top); err != nil || top == nil {
		return frameError("bad_header", "header is no JSON object")
	}
	for key, raw := range top {
		if string(raw) == "null" {
			continue
		}
		var err error
		switch strings.ToLower(strings.ReplaceAll(key, "_", "")) {
		case "code":
			c.Code, err = looseInt(raw)
		case "flag":
			c.Flag, err = looseInt(raw)
		case "opaque":
			c.Opaque, err = looseInt(raw)
		case "version":
			c.Version, err = looseInt(raw)
		case "language":
			c.Language, err = looseLanguage(raw)
		case "remark":
			c.Remark = looseText(raw)
		case "extfields":
			err = d.looseFields(raw)
		}
		if err != nil {
			return frameError("bad_header", "header field %s: %v", key, err)
		}
	}
	return nil
}

func looseInt(raw json.RawMessage) (int32, error) {
	var n json.Number
	if err := json.Unmarshal(raw, &n); err != nil { // json.Number takes numbers in quotes too
		return 0, fmt.Errorf("%s is no number", raw)
	}
	x, err := n.Int64()
	if err != nil || x != int64(int32(x)) {
		return 0, fmt.Errorf("%s is no 32-bit whole number", raw)
	}
	return int32(x), nil
}

func looseLanguage(raw json.RawMessage) (protocol.Language, error) {
	if raw[0] == '"' {
		return protocol.ParseLanguage([]byte(looseText(raw))), nil
	}
	x, err := looseInt(raw)
	if err != nil || x < 0 || x > 13 {
		return 0, errors.New("no such language")
	}
	return protocol.Language(x), nil
}

// looseText returns a text, or the JSON text of anything else.
func looseText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

func (d *decoder) looseFields(raw json.RawMessage) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		return errors.New("not an object")
	}
	for k, v := range m {
		if string(v) != "null" {
			d.fields = append(d.fields, protocol.Field{Key: []byte(k), Value: []byte(looseText(v))})
		}
	}
	return nil
}

// The binary header:
//
//	code (2) | language (1) | version (2) | opaque (4) | flag (4) | remark length (4) | remark |
//	fields length (4) | fields, each: key length (2) | key | value length (4) | value
const binaryFixed = 2 + 1 + 2 + 4 + 4 + 4 + 4

func (d *decoder) binary(b []byte, c *Command) error {
	be := binary.BigEndian
	if len(b) < binaryFixed {
		return frameError("bad_header", "binary header of %d bytes, at least %d are needed", len(b), binaryFixed)
	}
	c.Code = int32(int16(be.Uint16(b)))
	c.Language = protocol.Language(b[2])
	c.Version = int32(int16(be.Uint16(b[3:])))
	c.Opaque = int32(be.Uint32(b[5:]))
	c.Flag = int32(be.Uint32(b[9:]))
	n := int64(int32(be.Uint32(b[13:])))
	if n < 0 || n > int64(len(b)-binaryFixed) {
		return frameError("bad_header", "remark of %d bytes in a binary header of %d", n, len(b))
	}
	c.Remark = string(b[17 : 17+n])
	b = b[17+n:]
	n = int64(int32(be.Uint32(b)))
	if b = b[4:]; n != int64(len(b)) {
		return frameError("bad_header", "fields of %d bytes where %d are left in the binary header", n, len(b))
	}
	for len(b) > 0 {
		if len(b) < 2 {
			return frameError("bad_header", "binary header ends inside a field")
		}
		k := int(int16(be.Uint16(b)))
		if k < 0 || 2+k+4 > len(b) {
			return frameError("bad_header", "field name of %d bytes with %d left", k, len(b))
		}
		key := b[2 : 2+k]
		v := int64(int32(be.Uint32(b[2+k:])))
		b = b[2+k+4:]
		if v < 0 || v > int64(len(b)) {
			return frameError("bad_header", "field value of %d bytes with %d left", v, len(b))
		}
		d.fields = append(d.fields, protocol.Field{Key: key, Value: b[:v]})
		b = b[v:]
	}
	return nil
}

// head is what a frame's header says besides its custom fields.
type head struct {
	typ      Type
	code     int32
	language protocol.Language
	version  int32
	opaque   int32
	flag     int32
	remark   string
}

// appendFrame appends a frame up to and without its body, whose size it is told. header is a struct as
// protocol.Encode takes it, or nil for a frame without fields; extra follows it.
func appendFrame(dst []byte, h head, header any, extra protocol.Fields, body int) []byte {
	be := binary.BigEndian
	begin := len(dst)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	if h.typ == Binary {
		dst = be.AppendUint16(dst, uint16(h.code))
		dst = append(dst, byte(h.language))
		dst = be.AppendUint16(dst, uint16(h.version))
		dst = be.AppendUint32(dst, uint32(h.opaque))
		dst = be.AppendUint32(dst, uint32(h.flag))
		dst = be.AppendUint32(dst, uint32(len(h.remark)))
		dst = append(dst, h.remark...)
		at := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		dst = appendFields(dst, true, header, extra)
		be.PutUint32(dst[at:], uint32(len(dst)-at-4))
	} else {
		dst = append(dst, `{"code":`...)
		dst = appendInt(dst, h.code)
		if header != nil || len(extra) > 0 {
			dst = append(dst, `,"extFields":{`...)
			dst = appendFields(dst, false, header, extra)
			dst = append(dst, '}')
		}
		dst = append(dst, `,"flag":`...)
		dst = appendInt(dst, h.flag)
		dst = append(dst, `,"language":"`...)
		dst = append(dst, h.language.String()...)
		dst = append(dst, `","opaque":`...)
		dst = appendInt(dst, h.opaque)
		if h.remark != "" {
			dst = append(dst, `,"remark":`...)
			dst = protocol.AppendJSONString(dst, h.remark)
		}
		dst = append(dst, `,"serializeTypeCurrentRPC":"JSON","version":`...)
		dst = appendInt(dst, h.version)
		dst = append(dst, '}')
	}
	size := len(dst) - begin - frameHeader
	be.PutUint32(dst[begin:], uint32(4+size+body))
	be.PutUint32(dst[begin+4:], uint32(h.typ)<<24|uint32(size))
	return dst
}

func appendFields(dst []byte, binary bool, header any, extra protocol.Fields) []byte {
	w := protocol.NewFieldWriter(dst, binary)
	if header != nil {
		protocol.Encode(&w, header)
	}
	w.Fields(extra)
	return w.Buffer()
}

func appendInt(dst []byte, x int32) []byte {
	var text [11]byte
	at := len(text)
	u := int64(x)
	if u < 0 {
		u = -u
	}
	for {
		at--
		text[at] = byte('0' + u%10)
		if u /= 10; u == 0 {
			break
		}
	}
	if x < 0 {
		at--
		text[at] = '-'
	}
	return append(dst, text[at:]...)
}
