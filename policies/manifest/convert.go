package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// bytesPerValue is how few bytes of YAML one value may take on average when the
// input is as large as allowed. What kubectl prints takes about 30; the parser
// needs some 300 bytes of memory for each value, so that fewer would let 32 MiB
// of text fill gigabytes.
const bytesPerValue = 20

// toJSON turns one document into JSON texts: one, or for a text of several
// JSON values one behind the other, several. A YAML text may have about
// maxValues values.
func toJSON(text []byte, maxValues int) ([][]byte, *Error) {
	if n := bytes.Count(text, []byte("\n")) + bytes.Count(text, []byte(",")); n > maxValues && !json.Valid(text) {
		return nil, &Error{
			Msg: fmt.Sprintf("has %d lines and commas, more than the %d that are read in one YAML document; cut it by ---, give it as JSON, or raise the limit", n, maxValues),
			Err: ErrTooLarge,
		}
	}
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' {
		values, err := jsonValues(trimmed)
		if err == nil {
			return values, nil
		}
		// A mapping in YAML's flow style begins like JSON; but where YAML
		// refuses it too, JSON's words are the better ones.
		if out, yamlErr := yaml.YAMLToJSONStrict(text); yamlErr == nil {
			return [][]byte{out}, nil
		}
		return nil, &Error{Msg: fmt.Sprintf("is not valid JSON: %v; correct it", err)}
	}
	out, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return nil, yamlError(text, err)
	}
	return [][]byte{out}, nil
}

// jsonValues cuts a text of JSON values into the values.
func jsonValues(text []byte) ([][]byte, error) {
	var values [][]byte
	d := json.NewDecoder(bytes.NewReader(text))
	for {
		var raw json.RawMessage
		err := d.Decode(&raw)
		syntax := new(json.SyntaxError)
		switch {
		case errors.Is(err, io.EOF):
			return values, nil
		case errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fmt.Errorf("it ends in the middle of a value (line %d)", 1+bytes.Count(text, []byte("\n")))
		case errors.As(err, &syntax):
			at := min(int(syntax.Offset), len(text))
			return nil, fmt.Errorf("line %d: %w", 1+bytes.Count(text[:at], []byte("\n")), err)
		case err != nil:
			return nil, err
		}
		values = append(values, raw)
	}
}

var (
	yamlDuplicate = regexp.MustCompile(`line (\d+): (?:key|mapping key) (.*) already (?:set in map|defined)`)
	yamlLine      = regexp.MustCompile(`line (\d+): (.*)`)
)

// yamlError puts the YAML library's error into our words. Where a key is given
// twice, its path is looked up.
func yamlError(text []byte, err error) *Error {
	msg := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), "yaml: ")
	msg = strings.TrimPrefix(msg, "unmarshal errors:\n")
	msg, _, _ = strings.Cut(msg, "\n") // the first of many
	if m := yamlDuplicate.FindStringSubmatch(msg); m != nil {
		line, _ := strconv.Atoi(m[1])
		return &Error{
			Field: duplicatePath(firstLines(text, line)),
			Msg:   fmt.Sprintf("key %s is given twice (line %d of the document); keep one", m[2], line),
		}
	}
	if strings.Contains(msg, "excessive aliasing") {
		return &Error{Msg: "the text grows too much when its aliases (*name) are expanded; write the values out"}
	}
	if m := yamlLine.FindStringSubmatch(msg); m != nil {
		return &Error{Msg: fmt.Sprintf("is not valid YAML at line %s of the document: %s; correct it, or see whether the text was cut off", m[1], m[2])}
	}
	return &Error{Msg: fmt.Sprintf("is not valid YAML: %s; correct it, or see whether the text was cut off", msg)}
}

// firstLines cuts a text behind its n-th line.
func firstLines(text []byte, n int) []byte {
	at := 0
	for range n {
		i := bytes.IndexByte(text[at:], '\n')
		if i < 0 {
			return text
		}
		at += i + 1
	}
	return text[:at]
}

// duplicatePath finds the first key that a YAML text gives twice; empty where
// it cannot be found, as in a flow mapping that was cut off.
func duplicatePath(text []byte) string {
	var root yamlv3.Node
	if err := yamlv3.Unmarshal(text, &root); err != nil || len(root.Content) == 0 {
		return ""
	}
	var walk func(n *yamlv3.Node, path string) string
	walk = func(n *yamlv3.Node, path string) string {
		switch n.Kind {
		case yamlv3.MappingNode:
			seen := map[string]bool{}
			for i := 0; i+1 < len(n.Content); i += 2 {
				key := child(path, n.Content[i].Value)
				if seen[n.Content[i].Value] {
					return key
				}
				seen[n.Content[i].Value] = true
				if p := walk(n.Content[i+1], key); p != "" {
					return p
				}
			}
		case yamlv3.SequenceNode:
			for i, c := range n.Content {
				if p := walk(c, fmt.Sprintf("%s[%d]", path, i)); p != "" {
					return p
				}
			}
		}
		return ""
	}
	return walk(root.Content[0], "")
}

// child writes the path of a key below path; keys that are no names go in brackets.
func child(path, key string) string {
	if strings.ContainsAny(key, "./[] ") {
		return fmt.Sprintf("%s[%s]", path, key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}
