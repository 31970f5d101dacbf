package lab

import (
	"fmt"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Namespace is where Ladder's own service accounts live.
const Namespace = "ladder-system"

// user is one identity of the lab; its kubeconfig file is called after it.
type user struct {
	file   string
	name   string
	groups []string
}

var (
	userAdmin             = user{file: "admin", name: "ladder-lab-admin", groups: []string{"system:masters"}}
	userControllerManager = user{file: "kube-controller-manager", name: "system:kube-controller-manager"}
	userScheduler         = user{file: "kube-scheduler", name: "system:kube-scheduler"}
	userKwok              = user{file: "kwok", name: "ladder-lab:kwok"}
	userDriver            = user{file: "fake-driver", name: "ladder-lab:fake-driver"}
	userLadderScheduler   = serviceAccount("ladder-scheduler")
	userLadderController  = serviceAccount("ladder-controller")
)

var users = []user{
	userAdmin, userControllerManager, userScheduler, userKwok, userDriver, userLadderScheduler, userLadderController,
}

// serviceAccount is the identity that a Pod with this account would have.
func serviceAccount(name string) user {
	return user{
		file: name, name: "system:serviceaccount:" + Namespace + ":" + name,
		groups: []string{"system:serviceaccounts", "system:serviceaccounts:" + Namespace},
	}
}

// writeKubeconfig writes a kubeconfig that holds everything by value, so that
// it can be copied elsewhere.
func writeKubeconfig(path, server string, ca *authority, u user) error {
	cert, err := ca.client(u.name, u.groups...)
	if err != nil {
		return err
	}
	const cluster = "ladder-lab"
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{cluster: {Server: server, CertificateAuthorityData: ca.PEM}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{u.file: {ClientCertificateData: cert.Cert, ClientKeyData: cert.Key}},
		Contexts:       map[string]*clientcmdapi.Context{cluster: {Cluster: cluster, AuthInfo: u.file}},
		CurrentContext: cluster,
	}
	content, err := clientcmd.Write(config)
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig of %s, %w", u.file, err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return fmt.Errorf("writing the kubeconfig of %s, %w", u.file, err)
	}
	return nil
}
