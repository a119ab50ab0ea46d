// Signs in: the token goes in a header, never into an address, and comes back as a cookie that no script reads.
"use strict";
document.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const said = document.getElementById("said");
  try {
    const token = document.getElementById("token").value.trim();
    const answer = await fetch("/session", { headers: { Authorization: `Bearer ${token}` } });
    if (answer.ok) location.assign("/");
    else said.textContent = "That is not the token.";
  } catch { said.textContent = "That could not be sent: mzplan ui does not answer, or it is no token."; }
});
