package manifest

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxMessage bounds one part of an error's line, in bytes: input is untrusted
// and a message may quote it.
const maxMessage = 400

// Source is where an object was read.
type Source struct {
	// File is the path as it was given, or "stdin".
	File string
	// Document counts from 1; 0 means the file as a whole.
	Document int
	// Item counts from 1 in a List; 0 means that the document is no List.
	Item int
}

// String gives "FILE: document N, item M".
func (s Source) String() string {
	var b strings.Builder
	b.WriteString(printable(s.File))
	if s.Document > 0 {
		fmt.Fprintf(&b, ": document %d", s.Document)
	}
	if s.Item > 0 {
		fmt.Fprintf(&b, ", item %d", s.Item)
	}
	return b.String()
}

// Error is one thing that is wrong with the input. It occurs in every call of
// this package that reads or checks.
type Error struct {
	Source
	// Object is "Kind namespace/name" as far as it is known.
	Object string
	// Field is the path of the field, such as spec.tiers[0].models; empty
	// where the document as a whole is meant.
	Field string
	// Msg says what is wrong and, after a semicolon, what to do about it.
	Msg string
	// All lists every mistake of an object that was decoded but is not valid,
	// the one above included.
	All field.ErrorList
	// Err is the cause, where there is one to branch on.
	Err error
}

// Error gives one line:
// FILE: document N (Kind namespace/name), item M: field: what is wrong; what to do.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(printable(e.File))
	if e.Document > 0 {
		fmt.Fprintf(&b, ": document %d", e.Document)
	}
	if e.Object != "" {
		fmt.Fprintf(&b, " (%s)", clip(printable(e.Object)))
	}
	if e.Item > 0 {
		fmt.Fprintf(&b, ", item %d", e.Item)
	}
	if e.Field != "" {
		b.WriteString(": " + clip(printable(e.Field)))
	}
	b.WriteString(": " + clip(printable(e.Msg)))
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// printable keeps s on one line and free of control characters, so that input
// cannot write to the reader's terminal.
func printable(s string) string {
	clean := true
	for _, r := range s {
		if !unicode.IsPrint(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			b.WriteByte(' ')
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRuneToASCII(r)
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// clip shortens s to maxMessage bytes at a rune boundary.
func clip(s string) string {
	if len(s) <= maxMessage {
		return s
	}
	cut := maxMessage
	for cut > 0 && s[cut]&0xC0 == 0x80 {
		cut--
	}
	return s[:cut] + "…"
}
