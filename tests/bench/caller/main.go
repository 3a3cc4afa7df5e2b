// Command caller calls an RPC of a device plugin as the kubelet does, and prints how long each call took.
//
//	caller SOCKET RPC CALLERS WARM_UP <requests >durations
//
// Standard input has the encoded requests, each preceded by its length in four bytes, big-endian. The first WARM_UP
// requests are called one after the other and not measured. CALLERS goroutines share the others, on one connection, as
// in the kubelet (pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go). The output is one JSON object: the duration of
// each call in nanoseconds, and of all calls together. A failed call ends the program with exit code 1. As in the kubelet,
// calls have no deadline.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec that raw replaces
	"google.golang.org/grpc/mem"
)

// raw passes encoded messages through. Its name is that of protobuf's codec, so the headers are those of the kubelet.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*message.(*[]byte))}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, message any) error {
	*message.(*[]byte) = data.Materialize()
	return nil
}

type result struct {
	Durations []int64 `json:"durations"`
	Elapsed   int64   `json:"elapsed"`
}

func main() {
	encoding.RegisterCodecV2(raw{})
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "caller:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 5 {
		return errors.New("usage: caller SOCKET RPC CALLERS WARM_UP")
	}
	callers, err := strconv.Atoi(os.Args[3])
	if err != nil || callers < 1 {
		return fmt.Errorf("CALLERS is %q", os.Args[3])
	}
	warmUp, err := strconv.Atoi(os.Args[4])
	if err != nil {
		return err
	}
	requests, err := read(bufio.NewReader(os.Stdin))
	if err != nil {
		return err
	}
	if warmUp < 0 || warmUp > len(requests) {
		return fmt.Errorf("WARM_UP is %d of %d requests", warmUp, len(requests))
	}
	connection, err := grpc.NewClient("unix:"+os.Args[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	method := "/v1beta1.DevicePlugin/" + os.Args[2]
	if _, err := callAll(connection, method, requests[:warmUp], 1); err != nil {
		return err
	}
	measured, err := callAll(connection, method, requests[warmUp:], callers)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(measured)
}

// read returns the requests of the input.
func read(input io.Reader) ([][]byte, error) {
	var requests [][]byte
	for {
		var length uint32
		if err := binary.Read(input, binary.BigEndian, &length); errors.Is(err, io.EOF) {
			return requests, nil
		} else if err != nil {
			return nil, err
		}
		request := make([]byte, length)
		if _, err := io.ReadFull(input, request); err != nil {
			return nil, err
		}
		requests = append(requests, request)
	}
}

// callAll makes all calls, the request number i by the caller i modulo the number of callers.
func callAll(connection *grpc.ClientConn, method string, requests [][]byte, callers int) (result, error) {
	measured := result{Durations: make([]int64, len(requests))}
	failures := make([]error, callers)
	var running sync.WaitGroup
	started := time.Now()
	for caller := range callers {
		running.Add(1)
		go func() {
			defer running.Done()
			for i := caller; i < len(requests) && failures[caller] == nil; i += callers {
				measured.Durations[i], failures[caller] = call(connection, method, requests[i])
			}
		}()
	}
	running.Wait()
	measured.Elapsed = time.Since(started).Nanoseconds()
	return measured, errors.Join(failures...)
}

func call(connection *grpc.ClientConn, method string, request []byte) (int64, error) {
	var response []byte
	started := time.Now()
	err := connection.Invoke(context.Background(), method, &request, &response, grpc.WaitForReady(true))
	return time.Since(started).Nanoseconds(), err
}
