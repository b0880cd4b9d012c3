//! A database on a disk: nbdfuse, a loop device, ext4, PostgreSQL, and pgbench to the end.
//!
//! # Always true
//! - Whatever fails, the server is stopped, the file system unmounted, the loop device let go and nbdfuse ended,
//!   in this order, by the guards' drops; a place is never deleted while something is mounted in it.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

use crate::support::devices::{FuseFile, Loop, Mount};
use crate::support::place::{MIB, Place};
use crate::support::program::{Program, missing};
use crate::support::server::{Server, Serving};

/// A PostgreSQL server, its data and its socket in one directory, run as its own user.
struct Postgres {
    programs: PathBuf,
    dir: PathBuf,
}

impl Postgres {
    fn start(dir: &Path) -> Postgres {
        let postgres = Postgres {
            programs: newest_postgres(),
            dir: dir.to_owned(),
        };
        if !dir.join("data").exists() {
            postgres
                .program("initdb")
                .args(["--no-instructions", "--auth=trust", "-D"])
                .arg(dir.join("data"))
                .run();
        }
        // Only a socket in its own directory: no port to clash with another server's.
        let options = format!("-c listen_addresses='' -k {}", dir.display());
        postgres
            .program("pg_ctl")
            .args(["start", "--wait", "-D"])
            .arg(dir.join("data"))
            .arg("-l")
            .arg(dir.join("log"))
            .arg("-o")
            .arg(options)
            .run();
        postgres
    }

    /// One of PostgreSQL's programs, as its user, knowing where the server is.
    fn program(&self, name: &str) -> Program {
        Program::new("runuser")
            .args(["-u", "postgres", "--"])
            .arg(self.programs.join(name))
            .env("PGHOST", &self.dir)
            .env("PGDATABASE", "postgres")
    }

    fn ask(&self, question: &str) -> String {
        self.program("psql")
            .args(["-AtX", "-v", "ON_ERROR_STOP=1", "-c", question])
            .run()
            .trim()
            .to_owned()
    }

    fn stop(&self, how: &str) -> std::process::Output {
        self.program("pg_ctl")
            .args(["stop", "--wait", "-m", how, "-D"])
            .arg(self.dir.join("data"))
            .output()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let stopped = self.stop("immediate");
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            eprintln!("--- PostgreSQL's log:\n{log}\n--- {}", stopped.status);
        }
    }
}

/// Debian keeps each version's programs in a directory of its own, off the path.
fn newest_postgres() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let newest = versions
        .map(|v| v.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .max();
    newest.unwrap_or_else(|| missing("initdb"))
}

/// The user that Debian's package makes.
fn postgres_user() -> (u32, u32) {
    let id = |flag| {
        let said = Program::new("id").args([flag, "postgres"]).run();
        said.trim().parse().expect("id prints a number")
    };
    (id("-u"), id("-g"))
}

#[test]
fn a_database_runs_pgbench_to_the_end_and_is_whole_after_a_crash() {
    let place = Place::new();
    let me = fs::metadata(place.path())
        .expect("the place is there")
        .uid();
    assert_eq!(
        me, 0,
        "loop devices and mounts need root: run the tests as root"
    );
    let image = place.image("image", 1024 * MIB);
    let server = Server::start(&place, Serving::image(&image));
    let (user, group) = postgres_user();

    let fuse = FuseFile::mount(&place, &server.uri());
    let looped = Loop::on(&fuse.file());
    Program::new("mkfs.ext4").args(["-q", &looped.device]).run();
    let mount = Mount::at(place.join("mount"), &looped.device);
    let dir = mount.dir.join("db");
    fs::create_dir(&dir).expect("a directory can be made on the disk");
    chown(&dir, Some(user), Some(group)).expect("root gives it to the database");

    let postgres = Postgres::start(&dir);
    postgres
        .program("pgbench")
        .args(["--initialize", "--quiet", "--scale=4"])
        .run();
    let said = postgres
        .program("pgbench")
        .args(["--client=4", "--transactions=250", "--no-vacuum"])
        .run();
    assert!(
        said.contains("number of transactions actually processed: 1000/1000"),
        "{said}"
    );
    let sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history), \
                (select count(*) from pgbench_history)";
    assert_eq!(postgres.ask(sums), "t|1000");

    // As after a power cut of the database's host: its log must carry it over.
    postgres.stop("immediate");
    drop(postgres);
    drop(mount);
    Program::new("e2fsck").args(["-fn", &looped.device]).run();
    let mount = Mount::at(place.join("mount"), &looped.device);
    let postgres = Postgres::start(&dir);
    assert_eq!(postgres.ask(sums), "t|1000");
    let stopped = postgres.stop("fast");
    assert!(
        stopped.status.success(),
        "PostgreSQL stops when it is asked to"
    );
    drop(postgres);
    drop(mount);
    drop(looped);
    drop(fuse);
    drop(server);
}
