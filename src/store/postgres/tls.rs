//! TLS by rustls: whom to trust, as libpq's `sslmode` says it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Whose certificate is good enough. A path names the roots; without one the system's count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trust {
    /// Everybody's: what is sent cannot be read on the way, but may go to anybody (`prefer`, `require`).
    Anybody,
    /// One signed by a root, whatever name it has (`verify-ca`).
    Chain(Option<PathBuf>),
    /// One signed by a root for the host's name (`verify-full`).
    Name(Option<PathBuf>),
}

/// Makes TLS sessions; `own` are the files of this client's certificate and key.
///
/// # Errors
/// A file cannot be used.
pub(super) fn connector(trust: &Trust, own: Option<(&Path, &Path)>) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match trust {
        Trust::Name(roots) => builder.with_root_certificates(read_roots(roots.as_deref())?),
        Trust::Chain(roots) => {
            let roots = Arc::new(read_roots(roots.as_deref())?);
            let chain = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build()?;
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Lenient { provider, chain: Some(chain) }))
        }
        Trust::Anybody => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Lenient { provider, chain: None }))
        }
    };
    let config = match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let read = |path: &Path| format!("reading {}", path.display());
            let key = PrivateKeyDer::from_pem_file(key).with_context(|| read(key))?;
            builder.with_client_auth_cert(certificates(cert)?, key).with_context(|| read(cert))?
        }
    };
    Ok(MakeRustlsConnect::new(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = || CertificateDer::pem_file_iter(path)?.collect::<Result<Vec<_>, _>>();
    read().with_context(|| format!("reading {}", path.display()))
}

fn read_roots(path: Option<&Path>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = match path {
        Some(path) => certificates(path)?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = roots.add_parsable_certificates(found);
    anyhow::ensure!(added > 0, "no root certificate was found: name one by sslrootcert");
    Ok(roots)
}

/// Looks at the chain or at nothing, never at the name; that the other side has the certificate's key is always looked at.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is looked at last.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
