// Package fakenvml simulates NVIDIA's libnvidia-ml.so.1 for programs that load
// it: a library in C (folder lib) that tells of boards which a file describes,
// and this package, which builds it, describes the boards and has things happen
// to them.
//
// A folder holds what the library knows. board.conf is the hardware ([Install]);
// state is what has happened to it, shared by all processes and kept over their
// restarts, as the state of a GPU is ([Control], and the library itself, which
// makes and destroys MIG instances there). The library finds the folder by the
// environment variable [DirVariable], or is in it.
//
//	err := fakenvml.Build(ctx, filepath.Join(dir, fakenvml.LibraryName))
//	board, _ := fakenvml.Tier("h100-mig")
//	err = fakenvml.Install(dir, board, fakenvml.Machine{Name: "node-1", GPUs: 8})
//	lib := nvml.New(nvml.WithLibraryPath(filepath.Join(dir, fakenvml.LibraryName)))
//	err = fakenvml.Control{Dir: dir}.XID(0, 79)
//
// What boards report is what captures of real ones show, where there are any;
// the files in folder boards say which. Where it is not known what a real
// library answers, this one answers as the documentation of NVML says.
package fakenvml

// LibraryName is what programs load.
const LibraryName = "libnvidia-ml.so.1"

// DirVariable is the environment variable that names the library's folder.
// Without it that is where the library lies.
const DirVariable = "FAKENVML_DIR"
