//! Reserves ports, also while their server is down.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _};
use std::net::TcpListener;

/// Below the ephemeral ports: an outgoing connection could take one of those while the server
/// restarts.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Consecutive ports, and the file locks that reserve them. The operating system releases the locks
/// when the process ends.
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) first: u16,
    _locks: Vec<File>,
}

impl Ports {
    pub(crate) fn reserve(count: u16) -> Self {
        for _ in 0..1_000 {
            let span = RANGE.end - RANGE.start - count;
            let random = RandomState::new().build_hasher().finish() % u64::from(span);
            let first = RANGE.start + u16::try_from(random).expect("less than the span");
            let locks: Option<Vec<File>> = (first..first + count).map(lock).collect();
            if let Some(locks) = locks {
                return Self { first, _locks: locks };
            }
        }
        panic!("no free port on 127.0.0.1 from {} to {}", RANGE.start, RANGE.end);
    }
}

/// Locks a port; `None` if it is in use.
fn lock(port: u16) -> Option<File> {
    let folder = std::env::temp_dir().join("outbox-testbed-ports");
    fs::create_dir_all(&folder).ok()?;
    let file = File::options().create(true).append(true).open(folder.join(port.to_string())).ok()?;
    file.try_lock().ok()?;
    TcpListener::bind(("127.0.0.1", port)).ok()?;
    Some(file)
}
