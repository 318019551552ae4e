package protocol

// Language is the language a peer is written in. It is shown to operators and decides nothing here.
type Language uint8

// The languages whose code is used by name here; the others are known by name to String.
const (
	Java  Language = 0
	Other Language = 7
	Go    Language = 9
)

var languages = [...]string{"JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST", "NODE_JS"}

// String returns the name that JSON headers carry.
func (l Language) String() string {
	if int(l) < len(languages) {
		return languages[l]
	}
	return "OTHER"
}

// ParseLanguage returns the language of a name; an unknown one is Other.
func ParseLanguage(name []byte) Language {
	for i, n := range languages {
		if string(name) == n {
			return Language(i)
		}
	}
	return Other
}
