//! The files of the dashboard's pages, embedded from `crates/daemon/dashboard/`, with their security headers.
//!
//! # Always true
//! - A page needs nothing from elsewhere. Its content security policy allows only this daemon, no inline script, and
//!   no frame around the page.
//! - All files together are smaller than `WEIGHT`.
//!
//! # Source
//! W3C, Content Security Policy Level 3; WHATWG Fetch, `Cross-Origin-Resource-Policy`.

use axum::http::header::{self, HeaderName};
use axum::response::{IntoResponse, Response};

/// Limit of the total size of the files: an old telephone on a slow link loads the page in a few seconds.
#[cfg(test)]
const WEIGHT: usize = 300 << 10;

/// The content security policy of the pages.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// A file of the dashboard.
pub(crate) struct File {
    pub(crate) name: &'static str,
    kind: &'static str,
    text: &'static str,
}

macro_rules! files {
    ($($name:literal $kind:literal;)*) => {
        /// All files; the first is the page itself.
        pub(crate) const FILES: &[File] = &[$(File {
            name: $name,
            kind: $kind,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard/", $name)),
        }),*];
    };
}

files! {
    "index.html" "text/html; charset=utf-8";
    "style.css" "text/css; charset=utf-8";
    "icon.svg" "image/svg+xml";
    "app.js" "text/javascript; charset=utf-8";
    "live.js" "text/javascript; charset=utf-8";
    "words.js" "text/javascript; charset=utf-8";
    "draw.js" "text/javascript; charset=utf-8";
    "table.js" "text/javascript; charset=utf-8";
    "host.js" "text/javascript; charset=utf-8";
    "datastore.js" "text/javascript; charset=utf-8";
    "disk.js" "text/javascript; charset=utf-8";
    "curve.js" "text/javascript; charset=utf-8";
    "policy.js" "text/javascript; charset=utf-8";
    "snapshots.js" "text/javascript; charset=utf-8";
    "caches.js" "text/javascript; charset=utf-8";
    "pools.js" "text/javascript; charset=utf-8";
    "threads.js" "text/javascript; charset=utf-8";
    "events.js" "text/javascript; charset=utf-8";
}

impl File {
    /// The file of that name.
    pub(crate) fn find(name: &str) -> Option<&'static File> {
        FILES.iter().find(|file| file.name == name)
    }
}

impl IntoResponse for &'static File {
    fn into_response(self) -> Response {
        let headers = [
            (header::CONTENT_TYPE, self.kind),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            // After an upgrade of the daemon the old page must not talk to the new daemon.
            (header::CACHE_CONTROL, "no-store"),
            (
                HeaderName::from_static("cross-origin-opener-policy"),
                "same-origin",
            ),
        ];
        (headers, guarded(self.text.into_response())).into_response()
    }
}

/// Adds headers so that pages of other sites cannot use the response.
pub(crate) fn guarded(mut answer: Response) -> Response {
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ] {
        let value = header::HeaderValue::from_static(value);
        answer.headers_mut().insert(name, value);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_together_are_light() {
        let weight: usize = FILES.iter().map(|file| file.text.len()).sum();
        assert!(weight < WEIGHT, "{weight} bytes");
    }

    #[test]
    fn every_file_in_the_folder_is_served_and_names_only_files_that_are() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/dashboard");
        for entry in std::fs::read_dir(folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(File::find(&name).is_some(), "{name} is not served");
        }
        for file in FILES {
            for quoted in file.text.split('"') {
                let named = quoted
                    .strip_prefix("/dashboard/")
                    .or_else(|| quoted.strip_prefix("./"));
                if let Some(named) = named.filter(|named| named.contains('.')) {
                    assert!(File::find(named).is_some(), "{}: {named}", file.name);
                }
            }
        }
    }

    #[test]
    fn nothing_comes_from_elsewhere_and_no_script_or_style_is_in_the_page() {
        for file in FILES {
            for foreign in [
                "https://",
                "innerHTML",
                "eval(",
                " style=\"",
                "<style",
                " onclick=",
            ] {
                assert!(!file.text.contains(foreign), "{}: {foreign}", file.name);
            }
            // The namespace of SVG is a name, not an address that is fetched.
            let addresses = file.text.matches("http://").count();
            let names = file.text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(addresses, names, "{}", file.name);
            let scripts = file.text.matches("<script").count();
            assert_eq!(
                scripts,
                file.text.matches("<script type=\"module\" src=").count()
            );
        }
    }
}
