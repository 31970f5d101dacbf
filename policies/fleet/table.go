package fleet

// This file reads CSV files with a header, with errors that say line and column.

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
)

// table is a CSV file of which certain columns are read, by their names.
type table struct {
	reader  *csv.Reader
	columns map[string]int
}

// row is one line of a table. Its cells are good until the next one is read.
type row struct {
	table *table
	cells []string
}

// openTable reads the header; a file that lacks one of the columns is refused.
func openTable(r io.Reader, columns ...string) (*table, error) {
	t := &table{reader: csv.NewReader(r), columns: map[string]int{}}
	t.reader.ReuseRecord = true
	header, err := t.reader.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("reading header, %w", err)
	}
	for _, column := range columns {
		index := slices.Index(header, column)
		if index < 0 {
			return nil, fmt.Errorf("line 1: there is no column %q", column)
		}
		t.columns[column] = index
	}
	return t, nil
}

// rows goes through the lines after the header and ends after the first error.
func (t *table) rows() iter.Seq2[row, error] {
	return func(yield func(row, error) bool) {
		for {
			cells, err := t.reader.Read()
			if errors.Is(err, io.EOF) {
				return
			}
			if !yield(row{table: t, cells: cells}, err) || err != nil {
				return
			}
		}
	}
}

func (r row) text(column string) string {
	return strings.TrimSpace(r.cells[r.table.columns[column]])
}

// number reads a whole number from least to most.
func (r row) number(column string, least, most int64) (int64, error) {
	value, err := strconv.ParseInt(r.text(column), 10, 64)
	if err != nil {
		return 0, r.errorf(column, "must be a whole number, is %q", r.text(column))
	}
	if value < least || value > most {
		return 0, r.errorf(column, "must be %d to %d, is %d", least, most, value)
	}
	return value, nil
}

func (r row) errorf(column, format string, args ...any) error {
	line, _ := r.table.reader.FieldPos(r.table.columns[column])
	return fmt.Errorf("line %d, column %q: %w", line, column, fmt.Errorf(format, args...))
}
