//! The workspace as cargo describes it: crates, dependencies, targets.

use crate::command::output;
use anyhow::Context;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workspace that this program was built in.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// Where cargo builds.
    pub(crate) target: PathBuf,
    pub(crate) packages: Vec<Package>,
}

/// One of our crates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Crates it is built with, ours and others'; those that only its tests need are in `dev`.
    pub(crate) needs: Vec<String>,
    pub(crate) dev: Vec<String>,
    /// The root file of each target, relative to the workspace.
    pub(crate) targets: Vec<Target>,
}

/// Something that cargo builds.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) path: String,
}

impl Workspace {
    pub(crate) fn read() -> anyhow::Result<Workspace> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let json = output(
            Command::new(cargo)
                .args([
                    "metadata",
                    "--format-version=1",
                    "--no-deps",
                    "--manifest-path",
                ])
                .arg(manifest),
        )?;
        let json: Value = serde_json::from_str(&json).context("cargo metadata prints JSON")?;
        let root = PathBuf::from(text(&json, "workspace_root"));
        let target = PathBuf::from(text(&json, "target_directory"));
        let packages = list(&json, "packages")
            .iter()
            .map(|p| package(p, &root))
            .collect();
        Ok(Workspace {
            root,
            target,
            packages,
        })
    }

    /// The integration tests of our crates.
    pub(crate) fn test_targets(&self) -> impl Iterator<Item = &str> {
        let targets = self.packages.iter().flat_map(|p| &p.targets);
        targets
            .filter(|target| target.kind == "test")
            .map(|target| target.name.as_str())
    }

    /// The fuzz targets, which are a workspace of their own.
    pub(crate) fn fuzz_targets(&self) -> anyhow::Result<Vec<String>> {
        let dir = self.root.join("fuzz/fuzz_targets");
        let entries = std::fs::read_dir(&dir)
            .with_context(|| format!("there are no fuzz targets in {}", dir.display()))?;
        let mut names = Vec::new();
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == "rs") {
                names.extend(
                    path.file_stem()
                        .map(|stem| stem.to_string_lossy().into_owned()),
                );
            }
        }
        names.sort();
        Ok(names)
    }
}

fn package(json: &Value, root: &Path) -> Package {
    let mut package = Package {
        name: text(json, "name"),
        ..Package::default()
    };
    for dependency in list(json, "dependencies") {
        let kind = if text(dependency, "kind") == "dev" {
            &mut package.dev
        } else {
            &mut package.needs
        };
        kind.push(text(dependency, "name"));
    }
    for target in list(json, "targets") {
        let path = PathBuf::from(text(target, "src_path"));
        let path = path
            .strip_prefix(root)
            .unwrap_or(&path)
            .to_string_lossy()
            .into_owned();
        let kind = list(target, "kind")
            .first()
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        package.targets.push(Target {
            name: text(target, "name"),
            kind,
            path,
        });
    }
    package
}

fn text(json: &Value, key: &str) -> String {
    json[key].as_str().unwrap_or_default().to_owned()
}

fn list<'a>(json: &'a Value, key: &str) -> &'a [Value] {
    json[key].as_array().map_or(&[], Vec::as_slice)
}
