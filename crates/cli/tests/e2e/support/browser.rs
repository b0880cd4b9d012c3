//! A real browser: Chromium without a window, driven through its own driver.
//!
//! # Source
//! W3C WebDriver; what it does not have (other media, a telephone's screen) is the browser's own protocol, passed through
//! by `goog/cdp/execute`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::place::Place;
use super::program::{PATIENCE, Service, find};

/// What the driver calls an element in its answers.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A browser with one page.
pub(crate) struct Browser {
    driver: Service,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts one, with what it keeps in `place`.
    pub(crate) fn start(place: &Place) -> Browser {
        let home = place.join("browser");
        fs::create_dir_all(&home).expect("a directory can be made");
        let driver = Service::start(
            "chromedriver",
            find("chromedriver").as_os_str(),
            &["--port=0".to_owned()],
            &[
                ("HOME", home.display().to_string()),
                ("TMPDIR", home.display().to_string()),
            ],
        );
        let port = driver.said.wait("the driver's port", 0, PATIENCE, |said| {
            let (_, after) = said.split_once("started successfully on port ")?;
            let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
            // All of them are there once something follows.
            (digits.len() < after.len()).then(|| digits.parse().ok())?
        });
        let mut browser = Browser {
            driver,
            port,
            session: String::new(),
        };
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            // Pictures are of the page, on whatever screen they are looked at.
            "--hide-scrollbars",
            "--disable-lcd-text",
            "--window-size=1280,900",
            // glossary: Chromium's
            &format!("--user-data-dir={}", home.join("profile").display()),
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": find("chromium"), "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": PATIENCE.as_millis(), "pageLoad": PATIENCE.as_millis()},
        }}});
        let made = browser.driver("POST", "/session", &wanted);
        browser.session = text(&made["sessionId"]);
        browser
    }

    /// Opens an address.
    pub(crate) fn open(&self, url: &str) {
        self.order("POST", "/url", &json!({"url": url}));
    }

    /// Runs a script in whatever is opened from now on, before its own scripts.
    pub(crate) fn prepare(&self, script: &str) {
        let order = json!({"source": script});
        self.chromium("Page.addScriptToEvaluateOnNewDocument", &order);
    }

    /// What an expression of JavaScript is in the page.
    pub(crate) fn look(&self, expression: &str) -> Value {
        let script = format!("return ({expression});");
        self.order(
            "POST",
            "/execute/sync",
            &json!({"script": script, "args": []}),
        )
    }

    /// Runs a script that ends with `done(value)`.
    pub(crate) fn run(&self, script: &str) -> Value {
        let script = format!("const done = arguments[arguments.length - 1];\n{script}");
        self.order(
            "POST",
            "/execute/async",
            &json!({"script": script, "args": []}),
        )
    }

    /// Waits, in the page, until an expression is true; what it is then.
    pub(crate) fn until(&self, what: &str, expression: &str) -> Value {
        let patience = PATIENCE.as_millis() * 3 / 4;
        let script = format!(
            "const begun = Date.now();
             (function look() {{
               let is = null;
               try {{ is = ({expression}); }} catch {{ is = null; }}
               if (is || Date.now() - begun > {patience}) done(is || null);
               else setTimeout(look, 50);
             }})();"
        );
        let is = self.run(&script);
        if is.is_null() {
            let page = self.look("document.body.innerText");
            panic!("{what}: not seen in\n{}", text(&page));
        }
        is
    }

    /// The text of the first element that a selector finds.
    pub(crate) fn text(&self, selector: &str) -> String {
        text(&self.look(&format!(
            "document.querySelector({}).textContent",
            json!(selector)
        )))
    }

    /// Clicks, as a person does: what is covered cannot be clicked.
    pub(crate) fn click(&self, selector: &str) {
        let element = self.find(selector);
        self.order("POST", &format!("/element/{element}/click"), &json!({}));
    }

    /// Types into a field in the place of what is there.
    pub(crate) fn fill(&self, selector: &str, words: &str) {
        let element = self.find(selector);
        // All of it is selected and taken away by keys: the driver's own clearing tells the page of no input.
        let keys = format!("\u{e009}a\u{e009}\u{e003}{words}");
        self.order(
            "POST",
            &format!("/element/{element}/value"),
            &json!({"text": keys}),
        );
    }

    /// Presses keys of the keyboard, wherever it is.
    pub(crate) fn press(&self, keys: &str) {
        let strokes = keys.chars().flat_map(|key| {
            let stroke = |kind| json!({"type": kind, "value": key});
            [stroke("keyDown"), stroke("keyUp")]
        });
        let strokes: Vec<Value> = strokes.collect();
        let actions = json!({"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]});
        self.order("POST", "/actions", &actions);
    }

    /// Shows the page as on such a screen, light or dark.
    pub(crate) fn screen(&self, width: u32, height: u32, scheme: &str) {
        let screen = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600});
        self.chromium("Emulation.setDeviceMetricsOverride", &screen);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.chromium("Emulation.setEmulatedMedia", &features);
    }

    /// A picture of the whole page, into the folder that `TIDEGATE_SCREENSHOTS` names; nothing without it.
    pub(crate) fn picture(&self, name: &str) {
        let Some(folder) = std::env::var_os("TIDEGATE_SCREENSHOTS") else {
            return;
        };
        let wanted = json!({"format": "png", "captureBeyondViewport": true});
        self.shoot(&wanted, &PathBuf::from(folder).join(format!("{name}.png")));
    }

    /// A picture of what is seen of the page on its screen.
    pub(crate) fn picture_to(&self, path: &Path) {
        self.shoot(&json!({"format": "png"}), path);
    }

    fn shoot(&self, wanted: &Value, path: &Path) {
        let shot = self.chromium("Page.captureScreenshot", wanted);
        fs::write(path, base64(&text(&shot["data"]))).expect("a picture can be written");
    }

    /// What the page has complained of: broken scripts, and what its content security policy has stopped.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let log = self.order("POST", "/se/log", &json!({"type": "browser"}));
        let lines = log.as_array().cloned().unwrap_or_default().into_iter();
        let severe = lines.filter(|line| line["level"] == "SEVERE");
        severe.map(|line| text(&line["message"])).collect()
    }

    fn chromium(&self, command: &str, parameters: &Value) -> Value {
        let order = json!({"cmd": command, "params": parameters});
        self.order("POST", "/goog/cdp/execute", &order)
    }

    fn find(&self, selector: &str) -> String {
        let wanted = json!({"using": "css selector", "value": selector});
        text(&self.order("POST", "/element", &wanted)[ELEMENT])
    }

    fn order(&self, method: &str, path: &str, body: &Value) -> Value {
        self.driver(method, &format!("/session/{}{path}", self.session), body)
    }

    fn driver(&self, method: &str, path: &str, body: &Value) -> Value {
        let answer = self.exchange(method, path, body);
        let (head, body) = answer.unwrap_or_else(|error| panic!("{method} {path}: {error}"));
        let answer: Value = serde_json::from_str(&body)
            .unwrap_or_else(|error| panic!("{method} {path}: {error} in\n{head}\n{body}"));
        assert!(
            head.starts_with("HTTP/1.1 200"),
            "{method} {path}: {answer:#}"
        );
        answer["value"].clone()
    }

    fn exchange(
        &self,
        method: &str,
        path: &str,
        body: &Value,
    ) -> std::io::Result<(String, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE * 2))?;
        let body = body.to_string();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        // The driver keeps its connections, whatever it is asked to do with them.
        let mut stream = BufReader::new(stream);
        let (mut head, mut length) = (String::new(), 0);
        loop {
            let begins = head.len();
            stream.read_line(&mut head)?;
            let line = head[begins..].trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length is a number");
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        Ok((head, String::from_utf8_lossy(&body).into_owned()))
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends its browser; itself it is killed with its service. One that is gone has nothing to end.
        if !self.session.is_empty() {
            let _ = self.exchange("DELETE", &format!("/session/{}", self.session), &json!({}));
        }
        self.driver.kill();
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// RFC 4648, section 4.
fn base64(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut have) = (0_u32, 0);
    for digit in text.bytes() {
        let value = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => continue,
        };
        bits = bits << 6 | u32::from(value);
        have += 6;
        if have >= 8 {
            have -= 8;
            bytes.push(
                (bits >> have & 0xff)
                    .try_into()
                    .expect("eight bits are a byte"),
            );
        }
    }
    bytes
}
