// The standard library's reverse proxy with a tuned transport, routing by one field.
package main

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Without a pool of its own the proxy allocates 32 KiB for each answer.
type buffers struct{ pool sync.Pool }

func (kept *buffers) Get() []byte       { return *kept.pool.Get().(*[]byte) }
func (kept *buffers) Put(buffer []byte) { kept.pool.Put(&buffer) }

func newBuffers() *buffers {
	return &buffers{sync.Pool{New: func() any {
		buffer := make([]byte, 64*1024)
		return &buffer
	}}}
}

func main() {
	proxy := &httputil.ReverseProxy{
		// Each piece goes out as it comes, whatever its type, as in the other proxies.
		FlushInterval: -1,
		BufferPool:    newBuffers(),
		Transport: &http.Transport{
			MaxIdleConns:        20000,
			MaxIdleConnsPerHost: 256,
			IdleConnTimeout:     90 * time.Second,
			DisableCompression:  true,
		},
		Rewrite: func(request *httputil.ProxyRequest) {
			index, err := strconv.Atoi(strings.TrimPrefix(request.In.Header.Get("X-Sandbox-Id"), "sb-"))
			if err != nil {
				index = 0
			}
			request.Out.URL.Scheme = "http"
			request.Out.URL.Host = fmt.Sprintf("127.1.%d.%d:8888", index/250, index%250+1)
			// It writes queries anew, in another order, where it is not told to leave them.
			request.Out.URL.RawQuery = request.In.URL.RawQuery
			for _, name := range []string{"Id", "Namespace", "Port", "Token"} {
				request.Out.Header.Del("X-Sandbox-" + name)
			}
		},
	}
	if err := http.ListenAndServe("127.0.0.1:"+os.Args[1], proxy); err != nil {
		panic(err)
	}
}
