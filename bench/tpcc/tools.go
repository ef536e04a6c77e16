//go:build tools

// Package tpcc pins the TPC-C driver the benchmarks use; go.sum pins its bytes. `./strata bench tpcc` builds it with
//
//	go build -o ../../build/bench/go-tpc github.com/pingcap/go-tpc/cmd/go-tpc
//
// from this folder.
package tpcc

import _ "github.com/pingcap/go-tpc/cmd/go-tpc"
