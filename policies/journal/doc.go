// Package journal writes down everything that a decision engine was told and
// answered, and decides it all again from what was written.
//
// A journal is a text of JSON lines. The first line is the [Header]; each
// further one is an entry, numbered from 1 without gaps:
//
//	put      an object was added or replaced
//	delete   an object was removed
//	decide   a question, and the decision or the error that was the answer
//	assume   a decision was charged
//	forget   a charge was taken back
//	digest   what the State's digest was here
//
// `ladder decide --bundle` writes one for a run on files; ladder-scheduler
// writes one as it goes, and begins each new file with a snapshot
// ([Recorder.Rotate]), so that every file can be replayed by itself.
//
// [Replay] rebuilds the engine's State from the entries, decides every question
// again and compares the answers byte by byte. A line that was cut off at the
// very end, as by a crash, is dropped with a note. Everything else that is not
// as it was written is an [Error] naming the line.
package journal
