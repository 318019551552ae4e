package fastjson

import (
	"encoding/json"
	"testing"
)

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		`{"offsetTable":{"T@G":{0:12,1:7}}}`:                    `{"offsetTable":{"T@G":{"0":12,"1":7}}}`,
		`{{"topic":"T","queueId":1}:{'a':1,},}`:                 `{"{\"topic\":\"T\",\"queueId\":1}":{"a":1}}`,
		`{a:[1,2,],b:true , c : null}`:                          `{"a":[1,2],"b":true,"c":null}`,
		`{"offsetTable":{1:2,16:0` + "\n\t}\n}":                 `{"offsetTable":{"1":2,"16":0}}`,
		`{'it':'don\'t "quote"'}`:                               `{"it":"don't \"quote\""}`,
		`[]`:                                                    `[]`,
		`{"$ref":"$.mqPopTable.null"}`:                          `{"$ref":"$.mqPopTable.null"}`,
		"{\"raw\":\"a\x01b\"}":                                  `{"raw":"a\u0001b"}`,
		`{"brokerAddrs":{0:"127.0.0.1:30911"},"zone":"\u00e9"}`: `{"brokerAddrs":{"0":"127.0.0.1:30911"},"zone":"\u00e9"}`,
	} {
		got, err := Normalize([]byte(in))
		if err != nil || string(got) != want {
			t.Errorf("%s\n got %s, %v\nwant %s", in, got, err, want)
		}
	}
	for _, in := range []string{``, `{`, `{"a"}`, `{"a":}`, `[1 2]`, `{"a":1}x`, `"open`, `{"a":"\q"}`, `{:1}`, `nul`, `{"a":1 "b":2}`} {
		if got, err := Normalize([]byte(in)); err == nil {
			t.Errorf("%q was taken as %s", in, got)
		}
	}
}

func FuzzNormalize(f *testing.F) {
	f.Add([]byte(`{{"topic":"T"}:{0:1},'x':[1,2,],}`))
	f.Add([]byte(`{"a":"\u00e9\n","b":-1.5e3}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := Normalize(b)
		if err == nil && !json.Valid(got) {
			t.Fatalf("%q became %q, which is no JSON", b, got)
		}
		if json.Valid(b) && err != nil {
			t.Fatalf("%q is JSON: %v", b, err)
		}
	})
}
