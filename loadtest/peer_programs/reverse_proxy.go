// The standard library's reverse proxy with a tuned transport, routing by one field.
package main

import (
	"fmt"
	"net/http"
	"net/http/httputil"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	proxy := &httputil.ReverseProxy{
		FlushInterval: -1,
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
			for _, name := range []string{"Id", "Namespace", "Port", "Token"} {
				request.Out.Header.Del("X-Sandbox-" + name)
			}
		},
	}
	if err := http.ListenAndServe("127.0.0.1:"+os.Args[1], proxy); err != nil {
		panic(err)
	}
}
