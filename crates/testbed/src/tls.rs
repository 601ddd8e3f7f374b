//! Certificates of a private authority, created with `openssl`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Certificate files in PEM format.
#[derive(Debug)]
pub struct Certificates {
    /// Certificate of the authority.
    pub ca: PathBuf,
    /// Certificate and key for `localhost` and `127.0.0.1`.
    pub server: (PathBuf, PathBuf),
    /// Client certificate and key.
    pub client: (PathBuf, PathBuf),
}

impl Certificates {
    /// Creates the certificates in this directory, replacing existing ones.
    pub fn make(folder: &Path) -> Self {
        let folder = folder.join("tls");
        fs::create_dir_all(&folder).expect("the folder can be written to");
        let run = |line: &str| openssl(&folder, line);
        let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
        fs::write(folder.join("leaf"), LEAF).expect("the folder can be written to");
        run(&format!("req -x509 {key} -keyout ca.key -out ca.pem -days 30 -subj /CN=testbed-authority"));
        for name in ["server", "client"] {
            run(&format!("req {key} -keyout {name}.key -out {name}.csr -subj /CN={name}"));
            run(&format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile leaf -out {name}.pem"
            ));
        }
        let pair = |name: &str| (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
        Self { ca: folder.join("ca.pem"), server: pair("server"), client: pair("client") }
    }
}

const LEAF: &str = "basicConstraints=CA:FALSE\nsubjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n";

fn openssl(folder: &Path, line: &str) {
    let output = Command::new("openssl").args(line.split_whitespace()).current_dir(folder).output();
    let output =
        output.unwrap_or_else(|error| panic!("openssl cannot be run ({error}): `apt-get install openssl`"));
    assert!(output.status.success(), "openssl {line}: {}", String::from_utf8_lossy(&output.stderr));
}
