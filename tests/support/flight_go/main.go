// Asks the Arrow Flight door as a Go program does: lists views, looks keys up, scans a view, and queries.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func rows(ctx context.Context, client flight.Client, ticket []byte, each func(arrow.RecordBatch)) {
	stream, err := client.DoGet(ctx, &flight.Ticket{Ticket: ticket})
	check(err)
	reader, err := flight.NewRecordReader(stream)
	check(err)
	defer reader.Release()
	for reader.Next() {
		each(reader.RecordBatch())
	}
	check(reader.Err())
}

func main() {
	options := grpc.WithTransportCredentials(insecure.NewCredentials())
	client, err := flight.NewClientWithMiddleware(os.Args[1], nil, nil, options)
	check(err)
	defer client.Close()
	ctx, err := client.AuthenticateBasicToken(context.Background(), "reader", os.Args[2])
	check(err)

	found := map[string]any{}
	names := []string{}
	flights, err := client.ListFlights(ctx, &flight.Criteria{})
	check(err)
	for {
		info, err := flights.Recv()
		if err == io.EOF {
			break
		}
		check(err)
		names = append(names, info.FlightDescriptor.Path[0])
	}
	sort.Strings(names)
	found["flights"] = names

	texts := func(ticket []byte) []string {
		lines := []string{}
		rows(ctx, client, ticket, func(batch arrow.RecordBatch) {
			for row := 0; row < int(batch.NumRows()); row++ {
				customer, n := batch.Column(0).(*array.String), batch.Column(1).(*array.Int64)
				lines = append(lines, fmt.Sprintf("%s %d", customer.Value(row), n.Value(row)))
			}
		})
		return lines
	}
	found["lookup"] = texts([]byte(`{"view": "totals", "keys": [["ada"], ["bob"]]}`))

	count := int64(0)
	rows(ctx, client, []byte(`{"view": "Routes"}`), func(batch arrow.RecordBatch) { count += batch.NumRows() })
	found["scan"] = count

	command := []byte("SELECT customer, n FROM totals WHERE customer = 'eve'")
	info, err := client.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: command})
	check(err)
	found["query"] = texts(info.Endpoint[0].Ticket.Ticket)

	told, err := json.Marshal(found)
	check(err)
	fmt.Println(string(told))
}
