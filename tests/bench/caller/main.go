// Command caller calls Allocate of a device plugin as the kubelet does, and prints how long each call took.
//
//	caller SOCKET WARM_UP <requests >durations
//
// Standard input has the encoded requests, each preceded by its length in four bytes, big-endian. They are called one
// after the other on one connection (pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go); the first WARM_UP are not
// measured. The output is a JSON list of durations in nanoseconds. A failed call ends the program with exit code 1. As in
// the kubelet, calls have no deadline.
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

func main() {
	encoding.RegisterCodecV2(raw{})
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "caller:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 3 {
		return errors.New("usage: caller SOCKET WARM_UP")
	}
	warmUp, err := strconv.Atoi(os.Args[2])
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
	durations := make([]int64, len(requests))
	for i, request := range requests {
		if durations[i], err = call(connection, request); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(durations[warmUp:])
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

func call(connection *grpc.ClientConn, request []byte) (int64, error) {
	var response []byte
	started := time.Now()
	err := connection.Invoke(context.Background(), "/v1beta1.DevicePlugin/Allocate", &request, &response, grpc.WaitForReady(true))
	return time.Since(started).Nanoseconds(), err
}
