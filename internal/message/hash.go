package message

import (
	"unicode/utf16"
	"unicode/utf8"
)

// HashCode is Java's String.hashCode of a UTF-8 text: 31·h + c over its UTF-16 code units, in 32 bits.
func HashCode(s string) int32 {
	var h int32
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return hashRunes(h, s[i:])
		}
		h = 31*h + int32(s[i])
	}
	return h
}

// hashRunes continues a hash over text that isn't all ASCII. Malformed UTF-8 counts as U+FFFD, as Java decodes it.
func hashRunes(h int32, s string) int32 {
	for _, r := range s {
		if r1, r2 := utf16.EncodeRune(r); r1 != utf8.RuneError {
			h = 31*h + int32(r1)
			h = 31*h + int32(r2)
		} else {
			h = 31*h + int32(r)
		}
	}
	return h
}

// TagsCode is what a consume-queue entry holds for a tag: its hash, sign-extended; 0 for no tag.
func TagsCode(tags []byte) int64 {
	var h int32
	for i, c := range tags {
		if c >= utf8.RuneSelf {
			return int64(hashRunes(h, string(tags[i:])))
		}
		h = 31*h + int32(c)
	}
	return int64(h)
}

// IndexHash is the hash of an index key: the absolute value of its hash code, 0 for the smallest one.
func IndexHash(key string) int32 {
	h := HashCode(key)
	if h < 0 {
		h = -h
	}
	if h < 0 {
		return 0
	}
	return h
}
