// SPDX-License-Identifier: Apache-2.0

// A device plugin for a node without the devices: it offers made-up ones to the kubelet, and every container that
// gets some finds their names in an environment variable, as it would with real GPUs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

type plugin struct {
	api.UnimplementedDevicePluginServer
	devices []*api.Device
	env     string
}

func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (p *plugin) Allocate(_ context.Context, request *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{
			Envs: map[string]string{p.env: strings.Join(container.DevicesIds, ",")},
		})
	}
	return answer, nil
}

// serve registers with the kubelet. A kubelet that starts removes the sockets of all plugins, and serve returns.
func (p *plugin) serve(resource string) error {
	socket := filepath.Join(api.DevicePluginPath, strings.ReplaceAll(resource, "/", "-")+".sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	api.RegisterDevicePluginServer(server, p)
	go server.Serve(listener)
	defer server.Stop()

	kubelet, err := grpc.NewClient("unix://"+api.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: filepath.Base(socket), ResourceName: resource}
	if _, err := api.NewRegistrationClient(kubelet).Register(ctx, request); err != nil {
		return err
	}
	log.Printf("registered %d of %s", len(p.devices), resource)
	for {
		if _, err := os.Stat(socket); err != nil {
			return errors.New("the kubelet started anew")
		}
		time.Sleep(time.Second)
	}
}

func main() {
	resource := flag.String("resource", "nvidia.com/gpu", "name of the extended resource")
	count := flag.Int("count", 2, "number of devices")
	prefix := flag.String("prefix", "GPU-", "what the devices' names begin with")
	env := flag.String("env", "NVIDIA_VISIBLE_DEVICES", "variable that names a container's devices")
	flag.Parse()
	p := &plugin{env: *env}
	for i := range *count {
		p.devices = append(p.devices, &api.Device{ID: fmt.Sprintf("%s%d", *prefix, i), Health: api.Healthy})
	}
	for {
		log.Print(p.serve(*resource))
		time.Sleep(200 * time.Millisecond)
	}
}
