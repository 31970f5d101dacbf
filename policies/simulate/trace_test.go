package simulate

import (
	"bytes"
	"compress/gzip"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

const phillyText = `timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,0.5,16,8.0,6214E9
2017-10-09 06:13:04,9,0,0,6214e9

`

const openbText = `name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p-0,12000,16384,1,460,,LS,Running,0,100,10
p-1,12000,16384,2,1000,V100M16|V100M32|V100M16,BE,Pending,7,100,
p-2,12000,16384,0,0,,BE,Running,9,100,9
`

func TestReadTrace(t *testing.T) {
	philly := []Job{
		{Namespace: "11cb48", Created: time.Date(2017, 10, 9, 7, 1, 55, 0, time.UTC), Duration: 66 * time.Second, GPUs: 1, Line: 2},
		{Namespace: "6214e9", Created: time.Date(2017, 10, 9, 6, 13, 3, 0, time.UTC), Duration: 500 * time.Millisecond, GPUs: 16, Line: 3},
	}
	begin := time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC)
	openb := []Job{
		{Namespace: "ls", Created: begin, Duration: 90 * time.Second, GPUs: 1, Line: 2},
		{Namespace: "be", Created: begin.Add(7 * time.Second), Duration: 93 * time.Second, GPUs: 2, Models: []string{"V100M16", "V100M32"}, Line: 3},
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(phillyText)); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		text          string
		format, is    Format
		jobs          []Job
		skippedNumber int
	}{
		"philly":          {phillyText, "", Philly, philly, 1},
		"philly, named":   {phillyText, Philly, Philly, philly, 1},
		"philly, gzip":    {packed.String(), "", Philly, philly, 1},
		"openb":           {openbText, "", OpenB, openb, 1},
		"openb, named":    {openbText, OpenB, OpenB, openb, 1},
		"byte order mark": {"\ufeff" + openbText, "", OpenB, openb, 1},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ReadTrace(strings.NewReader(tc.text), tc.format)
			if err != nil {
				t.Fatal(err)
			}
			same := slices.EqualFunc(got.Jobs, tc.jobs, func(a, b Job) bool {
				return compareJobs(a, b) == 0 && a.Line == b.Line
			})
			if got.Format != tc.is || got.Skipped != tc.skippedNumber || !same {
				t.Errorf("%+v", got)
			}
		})
	}
	priority, err := ReadTrace(strings.NewReader("timestamp,duration,num_gpus,cluster,priority\n2017-10-09 07:01:55,1,1,a,-7\n2017-10-09 07:01:55,1,1,a,\n"), "")
	if err != nil || priority.Jobs[0].Priority != -7 || priority.Jobs[1].Priority != 0 {
		t.Errorf("priorities: %+v, %v", priority, err)
	}
}

func TestBadTraces(t *testing.T) {
	const head = "timestamp,duration,num_gpus,cluster,priority\n"
	const sound = "2017-10-09 07:01:55,1,1,a,0\n"
	const openb = "num_gpu,gpu_spec,qos,creation_time,deletion_time,scheduled_time\n"
	for name, tc := range map[string]struct {
		text   string
		format Format
		want   string
	}{
		"empty":               {"", "", "the file is empty"},
		"only a header":       {head, "", "the file has no job that asks for GPUs"},
		"an unknown header":   {"a,b\n1,2\n", "", "line 1: the header is that of no known trace: philly has the columns duration and num_gpus, openb num_gpu and creation_time"},
		"a missing column":    {"timestamp,duration,num_gpus\n", "", `line 1: there is no column "cluster", which format philly has`},
		"another format":      {head + sound, OpenB, `line 1: there is no column "num_gpu", which format openb has`},
		"a column twice":      {"duration,duration\n", "", `line 1: column "duration" is there twice`},
		"too few cells":       {head + sound + "2017-10-09 07:01:55,1\n", "", "line 3: wrong number of fields"},
		"a stray quote":       {head + sound + "2017\"-10-09 07:01:55,1,1,a,0\n", "", `line 3: bare " in non-quoted-field`},
		"no time":             {head + sound + "yesterday,1,1,a,0\n", "", `line 3, column "timestamp": must be a time such as "2017-10-09 07:01:55", is "yesterday"`},
		"no duration":         {head + "2017-10-09 07:01:55,,1,a,0\n", "", `line 2, column "duration": must be a number of seconds, is ""`},
		"not a number":        {head + "2017-10-09 07:01:55,NaN,1,a,0\n", "", `line 2, column "duration": must be a number of seconds, is "NaN"`},
		"a negative duration": {head + "2017-10-09 07:01:55,-1,1,a,0\n", "", `line 2, column "duration": must be 0 to 3153600000 seconds, is -1`},
		"half a GPU":          {head + "2017-10-09 07:01:55,1,0.5,a,0\n", "", `line 2, column "num_gpus": must be a whole number, is "0.5"`},
		"too many GPUs":       {head + "2017-10-09 07:01:55,1,100001,a,0\n", "", `line 2, column "num_gpus": must be 0 to 100000, is 100001`},
		"no tenant":           {head + "2017-10-09 07:01:55,1,1,,0\n", "", `line 2, column "cluster": "" is no name of a namespace: `},
		"a priority":          {head + "2017-10-09 07:01:55,1,1,a,high\n", "", `line 2, column "priority": must be a whole number of 32 bits, is "high"`},
		"openb backwards":     {openb + "1,,LS,5,9,10\n", "", `line 2, column "deletion_time": must not be before the beginning at 10, is 9`},
		"openb tenant":        {openb + "1,,Best Effort,5,9,\n", "", `line 2, column "qos": "best effort" is no name of a namespace: `},
		"broken gzip":         {"\x1f\x8b\x00\x01garbage", "", "is not sound gzip: "},
		"cut gzip":            {"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff", "", "can't be read: unexpected EOF"},
		"binary":              {"\x00\x01\x02", "", "line 1: the header is that of no known trace"},
		"a long cell":         {head + strings.Repeat("9", 10000) + ",1,1,a,0\n", "", `line 2, column "timestamp": must be a time such as "2017-10-09 07:01:55", is "` + strings.Repeat("9", 60) + `…"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadTrace(strings.NewReader(tc.text), tc.format)
			var wrong *Error
			if !errors.As(err, &wrong) || wrong.Part != PartTrace || !strings.HasPrefix(err.Error(), tc.want) {
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}
	if _, err := ReadTrace(strings.NewReader(phillyText), "sacct"); err == nil || err.Error() != `"sacct" is no format of traces` {
		t.Errorf("an unknown format: %v", err)
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add(phillyText)
	f.Add(openbText)
	f.Fuzz(func(t *testing.T, text string) {
		trace, err := ReadTrace(strings.NewReader(text), "")
		if (trace == nil) == (err == nil) {
			t.Errorf("%v, %v", trace, err)
		}
	})
}
