//! Ready-to-paste configuration lines that connect other programs to a disk.
//!
//! # Source
//! QEMU 7.2 and later (`reconnect-ms` replaces `reconnect` from 9.2 on), libvirt's domain XML, Cloud Hypervisor's
//! command line, and the NBD URI document.

use std::path::Path;

use tidegate_api::disk::SnippetFor;
use tidegate_api::routes::encode;

/// The data of a snippet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    /// The disk's name.
    pub(crate) name: &'a str,
    /// The socket to which its guests connect.
    pub(crate) vhost_user: &'a Path,
    /// The URI for NBD clients.
    pub(crate) nbd_uri: &'a str,
    /// The most queues that a guest may use.
    pub(crate) queues: u16,
}

/// The URI of an export on a Unix socket.
pub(crate) fn nbd_unix_uri(socket: &Path, export: &str) -> String {
    // The socket is a value in a query: everything except slashes is escaped, as the URI document requires.
    let socket = encode(&socket.to_string_lossy()).replace("%2F", "/");
    format!("nbd+unix:///{}?socket={socket}", encode(export))
}

/// The lines for one program.
pub(crate) fn snippet(r#for: SnippetFor, about: About<'_>) -> String {
    let About {
        name,
        vhost_user,
        nbd_uri,
        queues,
    } = about;
    let socket = vhost_user.display();
    // One queue for each virtual CPU is best; a small guest has four.
    let queues = queues.min(4);
    match r#for {
        SnippetFor::Qemu => format!(
            "# From QEMU 9.2 on: reconnect-ms=1000 in the place of reconnect=1.\n\
             qemu-system-x86_64 -accel kvm -m 1G \\\n\
             \x20 -object memory-backend-memfd,id=mem,size=1G,share=on \\\n\
             \x20 -machine q35,memory-backend=mem \\\n\
             \x20 -chardev socket,id={name},path={socket},reconnect=1 \\\n\
             \x20 -device pcie-root-port,id={name}-port \\\n\
             \x20 -device vhost-user-blk-pci,id={name}-disk,bus={name}-port,chardev={name},num-queues={queues}\n"
        ),
        SnippetFor::Libvirt => format!(
            "<!-- in <domain>: guest memory that the daemon can reach -->\n\
             <memoryBacking>\n\
             \x20 <source type='memfd'/>\n\
             \x20 <access mode='shared'/>\n\
             </memoryBacking>\n\
             <!-- in <devices> -->\n\
             <disk type='vhostuser' device='disk' snapshot='no'>\n\
             \x20 <driver name='qemu' type='raw' queues='{queues}'/>\n\
             \x20 <source type='unix' path='{socket}'>\n\
             \x20   <reconnect enabled='yes' timeout='1'/>\n\
             \x20 </source>\n\
             \x20 <target dev='vda' bus='virtio'/>\n\
             </disk>\n"
        ),
        SnippetFor::CloudHypervisor => format!(
            "cloud-hypervisor --memory size=1G,shared=on \\\n\
             \x20 --disk vhost_user=on,socket={socket},num_queues={queues},queue_size=128\n"
        ),
        SnippetFor::Nbd => format!(
            "nbdinfo '{nbd_uri}'\n\
             qemu-img info '{nbd_uri}'\n\
             nbdcopy '{nbd_uri}' copy.raw\n"
        ),
        SnippetFor::Fio => format!(
            "fio --name={name} --ioengine=nbd --uri='{nbd_uri}' \\\n\
             \x20 --rw=randread --bs=4k --iodepth=32 --time_based --runtime=10\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_snippet_names_the_door_it_uses() {
        let uri = nbd_unix_uri(Path::new("/run/tide gate/nbd.sock"), "db1");
        assert_eq!(uri, "nbd+unix:///db1?socket=/run/tide%20gate/nbd.sock");
        let about = About {
            name: "db1",
            vhost_user: Path::new("/run/tidegate/disks/db1.sock"),
            nbd_uri: &uri,
            queues: 16,
        };
        for program in SnippetFor::ALL {
            let text = snippet(program, about);
            let door = match program {
                SnippetFor::Nbd | SnippetFor::Fio => uri.as_str(),
                _ => "/run/tidegate/disks/db1.sock",
            };
            assert!(text.contains(door), "{text}");
            assert!(text.ends_with('\n'));
        }
    }
}
