//! Encrypted connections: trusted certificates, client certificates, and the cause of TLS failures. Certificates are
//! always checked.

use std::{
    error::Error as StdError,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use redis::RedisError;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        self, AlertDescription, CertificateError, ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

use crate::core::error::{Error, ErrorKind, Result};

/// How long a handshake can take. A server without TLS may wait for the end of a line for ever.
const HANDSHAKE_MAX: Duration = Duration::from_secs(2);

/// The files that an address names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    /// The trusted certificates, in place of those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// The client certificate and its key.
    pub(crate) own: Option<(PathBuf, PathBuf)>,
}

/// The TLS configuration.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// `Unsupported` for files that cannot be read or have other contents.
    pub(crate) fn open(files: &Files) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        let trusted = match &files.ca {
            Some(path) => certificates(path)?,
            None => rustls_native_certs::load_native_certs().certs,
        };
        // Some of the system's certificates may be unusual; of a file, one valid certificate is enough.
        roots.add_parsable_certificates(trusted);
        if roots.is_empty() {
            return Err(match &files.ca {
                Some(path) => unusable(path, "no certificate"),
                None => Error::new(ErrorKind::Unsupported, "the system has no trusted certificates")
                    .with_hint("name a file of trusted certificates: ca=/path/to/ca.pem"),
            });
        }
        // The provider is named, so that others in the process do not matter.
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("invariant: the provider has all that these versions need")
            .with_root_certificates(roots);
        let config = match &files.own {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let own_key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|e| unusable(key, "no private key").with_source(e))?;
                let own = config.with_client_auth_cert(certificates(cert)?, own_key);
                own.map_err(|e| unusable(cert, "no certificate of that key").with_source(e))?
            }
        };
        Ok(Self { config: Arc::new(config) })
    }

    /// Does the handshake with the server at `host`, whose certificate must name it. Fails with an error that
    /// [`fault`] understands.
    pub(crate) async fn speak(&self, host: &str, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let plain = || io::Error::other(rustls::Error::General("the server did not take up TLS".into()));
        let name = ServerName::try_from(host.to_owned())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let connector = TlsConnector::from(Arc::clone(&self.config));
        match timeout(HANDSHAKE_MAX, connector.connect(name, stream)).await {
            Ok(Err(e)) if e.kind() == io::ErrorKind::UnexpectedEof => Err(plain()),
            Ok(outcome) => outcome,
            Err(_) => Err(plain()),
        }
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let failed = |e: rustls::pki_types::pem::Error| unusable(path, "no certificate").with_source(e);
    CertificateDer::pem_file_iter(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)
}

fn unusable(path: &Path, what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("found {what} in {}", path.display()))
        .with_hint("check ca=…, cert=… and key=… in the address: each names a file in PEM format")
}

/// Returns the TLS cause of a failure to connect, if there is one.
pub(crate) fn fault(cause: &RedisError) -> Option<Error> {
    let cause = cause.source()?.downcast_ref::<Arc<dyn StdError + Send + Sync>>()?;
    let cause = cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref::<rustls::Error>()?;
    let (message, hint) = match cause {
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => (
            "the server's certificate is for another host",
            "write the host as it stands in the certificate, or have one made for this host",
        ),
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => ("the server's certificate has expired", "renew it, and look at this machine's clock"),
        rustls::Error::InvalidCertificate(_) => (
            "the server's certificate is not trusted",
            "name the file of the certificate that signed it: ca=/path/to/ca.pem",
        ),
        rustls::Error::AlertReceived(
            AlertDescription::CertificateRequired
            | AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::AccessDenied,
        ) => (
            "the server does not trust who connects",
            "name a certificate that it trusts, cert=/path&key=/path, or set tls-auth-clients no on the server",
        ),
        rustls::Error::General(_) | rustls::Error::InvalidMessage(_) => (
            "the server does not speak TLS there",
            "name the port where it does (tls-port), or write the address without the second s of rediss",
        ),
        _ => ("could not agree on TLS with the server", "its log may say why"),
    };
    Some(Error::new(ErrorKind::Unsupported, message).with_hint(hint).with_source(cause.clone()))
}
