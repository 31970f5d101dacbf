// Package fault is the wire format of fault control: how a test, a scenario or
// `ladder fault` makes the fake driver of a node misbehave while it runs.
//
// # The protocol
//
// JSON over HTTP on a unix socket in the driver's data folder ([DefaultSocket]),
// which only root may open. It is there only where the driver was started with
// --allow-faults.
//
//	GET    /v1/faults             what is in force: {"faults":[…]}
//	POST   /v1/faults             inject a [Spec], answers 201 with the [Fault]
//	DELETE /v1/faults             clear all of them: {"faults":[…]} as they were
//	DELETE /v1/faults?device=D    clear those of one device
//	DELETE /v1/faults?id=N        clear one
//
// Bodies are decoded strictly: a field that is unknown, written in another
// case, given twice or of no use to the kind is an error, 400. What names a
// device or fault that is not there is 404, a fault that the program can't bring
// about 422. Every error is {"error":"…"} in words for a person.
//
// [Handler] is the driver's side of it over whatever implements [Interface],
// [Client] is the other side and implements [Interface] itself. The package
// needs the standard library only, so that a program that injects faults does
// not grow by a driver.
package fault
