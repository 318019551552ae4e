package client

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/base64"
	"encoding/binary"
	"slices"

	"github.com/apogeemq/apogee/internal/protocol"
	"github.com/apogeemq/apogee/internal/remoting"
)

// credentials sign requests.
type credentials struct{ access, secret, token string }

// sign returns r with the fields that the client's namespace and credentials ask for (Java's NamespaceRpcHook and
// AclClientRPCHook, in this order).
func (c *Client) sign(r *remoting.Request) *remoting.Request {
	if c.o.space == "" && c.o.keys == nil {
		return r
	}
	s := *r
	s.Extra = slices.Clone(r.Extra)
	add := func(k, v string) { s.Extra = append(s.Extra, protocol.Field{Key: []byte(k), Value: []byte(v)}) }
	if c.o.space != "" {
		add("nsd", "true")
		add("ns", c.o.space)
	}
	if k := c.o.keys; k != nil {
		add("AccessKey", k.access)
		if k.token != "" {
			add("SecurityToken", k.token)
		}
		add("Signature", signature(k.secret, append(headerFields(r.Header), s.Extra...), r.Body))
	}
	return &s
}

// signature is Base64(HMAC-SHA1(secret, values of all fields in the order of their keys, then the body)).
func signature(secret string, fields protocol.Fields, body []byte) string {
	fields = slices.Clone(fields)
	slices.SortFunc(fields, func(a, b protocol.Field) int { return cmp.Compare(string(a.Key), string(b.Key)) })
	h := hmac.New(sha1.New, []byte(secret))
	for _, f := range fields {
		h.Write(f.Value)
	}
	h.Write(body)
	return base64.StdEncoding.EncodeToString(h.Sum(nil))
}

// headerFields returns a header's fields as they go out.
func headerFields(header any) protocol.Fields {
	if header == nil {
		return nil
	}
	w := protocol.NewFieldWriter(nil, true)
	protocol.Encode(&w, header)
	var out protocol.Fields
	for b := w.Buffer(); len(b) > 0; { // pairs: key length (2), key, value length (4), value
		n := int(binary.BigEndian.Uint16(b))
		key := b[2 : 2+n]
		b = b[2+n:]
		n = int(binary.BigEndian.Uint32(b))
		out = append(out, protocol.Field{Key: key, Value: b[4 : 4+n]})
		b = b[4+n:]
	}
	return out
}
