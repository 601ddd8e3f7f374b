//! Finds the migrations of sqlxmq, which its users are to run themselves, where cargo has unpacked
//! them.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=Cargo.lock");
    let cargo = std::env::var("CARGO").expect("cargo says where it is");
    let metadata = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked"])
        .output()
        .expect("cargo metadata runs");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&metadata.stdout).expect("cargo metadata is JSON");
    let manifest = metadata["packages"]
        .as_array()
        .and_then(|packages| packages.iter().find(|package| package["name"] == "sqlxmq"))
        .and_then(|package| package["manifest_path"].as_str())
        .expect("sqlxmq is a dependency");
    let migrations = Path::new(manifest).with_file_name("migrations");
    println!("cargo:rustc-env=SQLXMQ_MIGRATIONS={}", migrations.display());
}
