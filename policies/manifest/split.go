package manifest

import (
	"bytes"
	"fmt"
	"unicode/utf8"
)

// document is one part of a file between lines `---`.
type document struct {
	number int
	text   []byte
	// trailing is set when text stands after the end marker `...`.
	trailing bool
}

// split cuts a file into documents, without copying. Documents of nothing but
// blanks and comments are counted but not returned.
func split(data []byte) []document {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	var docs []document
	number, start, end := 1, 0, -1
	flush := func(stop int) {
		text, trailing := data[start:stop], false
		if end >= 0 {
			trailing = !blank(data[end:stop])
			text = data[start:end]
		}
		if !blank(text) || trailing {
			docs = append(docs, document{number: number, text: text, trailing: trailing})
		}
		end = -1
	}
	seen := false // any text at all before this line
	for at := 0; at < len(data); {
		next := len(data)
		if i := bytes.IndexByte(data[at:], '\n'); i >= 0 {
			next = at + i + 1
		}
		switch line := data[at:next]; {
		case marker(line, "---"):
			if seen {
				flush(at)
				number++
			}
			start, end, seen = at+len("---"), -1, true
		case marker(line, "...") && end < 0:
			end = at
		default:
			seen = seen || len(bytes.TrimSpace(line)) > 0
		}
		at = next
	}
	flush(len(data))
	return docs
}

// marker says whether a line is a document marker, alone or followed by a blank.
func marker(line []byte, m string) bool {
	if !bytes.HasPrefix(line, []byte(m)) {
		return false
	}
	return len(line) == len(m) || bytes.IndexByte([]byte(" \t\r\n"), line[len(m)]) >= 0
}

// blank says whether a text holds nothing but blanks, comments and end markers.
func blank(text []byte) bool {
	for len(text) > 0 {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		if marker(line, "...") {
			continue
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			return false
		}
	}
	return true
}

// notText says why a document cannot be YAML or JSON text, or nothing.
func notText(text []byte) string {
	if bytes.HasPrefix(text, []byte{0x1f, 0x8b}) {
		return "is compressed by gzip, not text; unpack it first"
	}
	if i := bytes.IndexByte(text, 0); i >= 0 {
		return fmt.Sprintf("is binary, not text (a zero byte at offset %d); give YAML or JSON in UTF-8", i)
	}
	if !utf8.Valid(text) {
		i := 0
		for i < len(text) {
			r, n := utf8.DecodeRune(text[i:])
			if r == utf8.RuneError && n == 1 {
				break
			}
			i += n
		}
		return fmt.Sprintf("is not text in UTF-8 (byte 0x%02x at offset %d); give YAML or JSON in UTF-8", text[i], i)
	}
	return ""
}
