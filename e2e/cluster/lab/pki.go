package lab

// Keys and certificates of one lab. Everybody, also ladder's own service
// accounts, is known to the API server by a client certificate: that needs no
// object in the cluster, and works before the first controller runs.

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// validity is longer than any lab lives, and short enough that a key that is
// left somewhere is soon worth nothing.
const validity = 30 * 24 * time.Hour

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// PEM is the certificate, for those who have to trust it.
	PEM []byte
}

// pair is a certificate and its key, both as PEM.
type pair struct{ Cert, Key []byte }

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of authority %s, %w", name, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: name})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing authority %s, %w", name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading back authority %s, %w", name, err)
	}
	return &authority{cert: cert, key: key, PEM: encodeCert(der)}, nil
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("drawing a serial number, %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject,
		NotBefore: now.Add(-5 * time.Minute), NotAfter: now.Add(validity),
	}, nil
}

// serving returns a certificate for a server on the loopback interface that may
// also be shown to servers of the same kind (etcd's peers do so).
func (a *authority) serving(name string, dnsNames ...string) (pair, error) {
	template, err := newTemplate(pkix.Name{CommonName: name})
	if err != nil {
		return pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.DNSNames = append([]string{"localhost"}, dnsNames...)
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), serviceIP}
	return a.sign(template)
}

// client returns a certificate for a user of the API server.
func (a *authority) client(user string, groups ...string) (pair, error) {
	template, err := newTemplate(pkix.Name{CommonName: user, Organization: groups})
	if err != nil {
		return pair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

func (a *authority) sign(template *x509.Certificate) (pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("making the key of %s, %w", template.Subject.CommonName, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return pair{}, fmt.Errorf("signing the certificate of %s, %w", template.Subject.CommonName, err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return pair{}, err
	}
	return pair{Cert: encodeCert(der), Key: keyPEM}, nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a private key, %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func encodePublic(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a public key, %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// Files in the folder of keys.
const (
	fileCA             = "ca.crt"
	fileServing        = "serving"
	fileEtcdCA         = "etcd-ca.crt"
	fileEtcdServing    = "etcd-serving"
	fileEtcdClient     = "etcd-client"
	fileServiceAccount = "service-account"
	fileFrontProxyCA   = "front-proxy-ca.crt"
)

// writePKI makes all keys that the components read from files, and returns the
// authority that signs the users' certificates. etcd has an authority of its
// own: a user of the API server must not be one of etcd's.
func writePKI(dir string) (*authority, error) {
	ca, err := newAuthority("ladder-lab")
	if err != nil {
		return nil, err
	}
	etcdCA, err := newAuthority("ladder-lab-etcd")
	if err != nil {
		return nil, err
	}
	// Nothing aggregates APIs here, but every component that serves reads this
	// authority from the cluster and complains for as long as there is none.
	frontProxyCA, err := newAuthority("ladder-lab-front-proxy")
	if err != nil {
		return nil, err
	}
	serving, err := ca.serving("kube-apiserver", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
	if err != nil {
		return nil, err
	}
	etcdServing, err := etcdCA.serving("etcd")
	if err != nil {
		return nil, err
	}
	etcdClient, err := etcdCA.client("kube-apiserver")
	if err != nil {
		return nil, err
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of service account tokens, %w", err)
	}
	signerKey, err := encodeKey(signer)
	if err != nil {
		return nil, err
	}
	signerPublic, err := encodePublic(signer.Public())
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{
		fileCA: ca.PEM, fileEtcdCA: etcdCA.PEM, fileFrontProxyCA: frontProxyCA.PEM,
		fileServing + ".crt": serving.Cert, fileServing + ".key": serving.Key,
		fileEtcdServing + ".crt": etcdServing.Cert, fileEtcdServing + ".key": etcdServing.Key,
		fileEtcdClient + ".crt": etcdClient.Cert, fileEtcdClient + ".key": etcdClient.Key,
		fileServiceAccount + ".key": signerKey, fileServiceAccount + ".pub": signerPublic,
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return nil, fmt.Errorf("writing keys, %w", err)
		}
	}
	return ca, nil
}
