//! Puts every scenario of the tree into the crate, so that an installed program has them all.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let own = env::var("CARGO_MANIFEST_DIR").expect("cargo says where the crate is");
    let out = env::var("OUT_DIR").expect("cargo says where to write");
    let dir = Path::new(&own).join("../../scenarios");
    println!("cargo:rerun-if-changed={}", dir.display());
    let entries = fs::read_dir(&dir).expect("the tree has scenarios");
    let paths = entries.map(|entry| entry.expect("a directory can be read to its end").path());
    let mut paths: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .collect();
    paths.sort();
    let texts = paths.iter().map(|path| {
        let path = path.canonicalize().expect("what is listed is there");
        format!("    include_str!({:?}),\n", path.display().to_string())
    });
    let table = format!("&[\n{}]\n", texts.collect::<String>());
    fs::write(Path::new(&out).join("scenarios.rs"), table).expect("cargo's directory is writable");
}
